"""Defects planted in ring_attention.cu are reported, and the sound kernel is silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulate.shipped import whole_text
from planted import DEADLOCK, RACE, Defect, Edit, defects, without
from planted_choices import choices
from planted_runs import check_reported, in_orders
from ring_cases import check, drawn, shards
from worlds import arrays_on, peers, poisoned

from tmaasync import ops
from tmaasync.kernel.observed import observe
from tmaasync.ops._flash.ring import RingTileConfig
from tmaasync.ops._operation import tile_configs

RANKS, CHUNK = 2, 90
DEFECTS = defects(
    "ring_attention.cu",
    ("a piece is announced before its stores are done", without("wait_group<0>();", "push"), RACE,
     "the store may not have"),
    ("a block is loaded before it has arrived", without("signals.wait(...);", "wait_for_rows"),
     RACE, "the data may not have landed|the peer may still be reading"),
    ("the producer takes no token", without("arrivals.take(next);"), RACE,
     "the data may not have landed"),
    ("a rank pushes before its peer has entered the round",
     without("if (...) signals.wait(peer, epoch);", "push"), RACE, "the peer may still be reading"),
    ("no rank enters the round", without("if (blockIdx.x == 0) round.enter();"), DEADLOCK,
     "waits for epoch 1 of signal"),
    ("the second chunk reaches its own rank alone",
     Edit("peer > own.rank", "peer != own.rank", "push"), DEADLOCK, "waits for epoch 1 of signal"),
    ("the masked rest of a block is not waited for",
     Edit("min(blocks.end * BLOCK_N, round.own.buffered_keys())", "tile.entry.keys.length"), RACE,
     r"race on (buffered_[kv]|targets\[\d\])"),
    ("the next head is announced by the signals of the first",
     Edit("head * per_peer + piece", "piece", "push"), RACE, r"race on buffered_[kv]"),
    ("the round of the call before is announced",
     Edit("piece), epoch)", "piece), epoch - 1)", "push"), DEADLOCK,
     "waits for epoch 1 of signal"),
)  # fmt: skip


def run(defect: Defect | None) -> None:
    """Make two calls with a small tile. A sound kernel's results are right."""
    found = choices(whole_text("ring_attention.cu"), DEFECTS)

    class Planted(RingTileConfig):
        source = found.text_with(defect)

    rng = np.random.default_rng(0)
    with peers(RANKS) as world, tile_configs(lambda _: Planted(64, 1, 32)), observe() as seen:
        calls = []
        for _ in range(2):
            whole = drawn(rng, 1, 2 * RANKS * CHUNK, 2, 2, 64, np.float16)
            out = poisoned(world, [(1, 2 * CHUNK, 2, 64)] * RANKS, np.float16)
            given: Any = [arrays_on(world, shards(one, RANKS, causal=True)) for one in whole]
            calls.append((ops.ring_attention(*given, causal=True, out=out), whole))
        found.choose_in(seen.kernels, defect)
        world.synchronize()
        if defect is None:
            for out, whole in calls:
                check(out, whole, causal=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_reported_in_any_order(defect: Defect) -> None:
    check_reported(defect, lambda: run(defect))


@pytest.mark.slow
def test_the_sound_kernel_is_silent() -> None:
    in_orders(2, lambda: run(None))
