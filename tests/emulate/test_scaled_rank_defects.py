"""Defects in the block-scaled FP8 kernels of several ranks are reported; sound ones are silent."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulate.shipped import whole_text
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without
from planted_choices import choices
from planted_runs import check_reported, in_orders
from scaled_ranks import drawn_parts, drawn_shards, multiplied, terms
from worlds import arrays_on, peers, poisoned

from tmaasync import ops
from tmaasync.kernel.observed import observe
from tmaasync.ops._gemm.all_gather import AllGatherScaledConfig
from tmaasync.ops._gemm.reduce_scatter import ScaledScatterConfig
from tmaasync.ops._operation import tile_configs

GATHER, SCATTER = ops.all_gather_scaled_matmul, ops.scaled_matmul_reduce_scatter
ROWS = (75, 70, 0)
GATHER_DEFECTS = defects(
    "all_gather_scaled_gemm.cu",
    (
        "TMA may read scales before the stores of threads",
        without("ptx::fence_proxy_async_global();", "OwnScales::push"),
        RACE,
        "race on",
    ),
    (
        "a lane announces scales that others still store",
        Edit(
            "ptx::fence_proxy_async_global(); __syncwarp();",
            "ptx::fence_proxy_async_global();",
            "OwnScales::push",
        ),
        RACE,
        "race on",
    ),
    (
        "scales are stored before the peer has room",
        without("if (...) round.signals.wait(peer, round.epoch - 1);", "OwnScales::push"),
        RACE,
        "the peer may still be reading",
    ),
    (
        "no scales are announced",
        without("if (lane_index() == 0) { round.signals.post(...); }", "OwnScales::push"),
        DEADLOCK,
        "waits for epoch 1 of signal",
    ),
    (
        "scales are loaded before they have arrived",
        without("round.template wait_for_rows<true>(...);"),
        RACE,
        "race on",
    ),
    (
        "scales are announced by the signals of rows",
        Edit("units + unit", "unit", "OwnScales::push"),
        DEADLOCK + RACE,
        "signal|race on",
    ),
    (
        "scales of own rows are not waited for",
        Edit("if (is_own && !Operands::has_scales()) continue;", "if (is_own) continue;"),
        DEADLOCK + FAULT,
        "full|arrivals",
    ),
    (
        "rows are stored two rounds before the peer has room",
        Edit("signals.wait(peer, free_epoch);", "signals.wait(peer, free_epoch - 1);", "push"),
        RACE,
        "race on",
    ),
    (
        "all ranks store their scales from the first row on",
        Edit("round.shards.starts[rank] + row", "row", "push_unit"),
        RACE,
        "race on",
    ),
)
SCATTER_DEFECTS = defects(
    "scaled_gemm_reduce_scatter.cu",
    (
        "a part is announced before its stores are done",
        without("if (leads()) wait_group<0>();", "announce"),
        RACE,
        "the store may not have",
    ),
    (
        "parts are added before they have arrived",
        without("wait_for_peers(slot);"),
        RACE,
        "race on",
    ),
    (
        "a part is sent before its buffer is free",
        without("round_.signals.wait(tile.owner, round_.epoch - 1);"),
        RACE,
        r"race on (received_|sent)",
    ),
    (
        "a part is sent when the sender, not the owner, has entered the round",
        Edit(
            "round_.signals.wait(tile.owner, round_.epoch - 1);",
            "round_.signals.wait(own_rank(), round_.epoch - 1);",
        ),
        RACE,
        r"race on (received_|sent)",
    ),
    (
        "scales are loaded from the row itself on",
        Edit("tile.m - skipped(tile.m)", "tile.m", "load"),
        FAULT,
        "the innermost coordinate is .* multiple of 16 bytes",
    ),
)


def run(call: Any, kind: Any, source: str, defect: Defect | None) -> None:
    """Run a kernel with a defect, or the sound one, whose results are right."""
    found = choices(whole_text(source), GATHER_DEFECTS if call is GATHER else SCATTER_DEFECTS)
    with tempfile.TemporaryDirectory() as folder, observe() as seen:
        path = Path(folder) / source
        path.write_text(found.text_with(defect), encoding="utf-8")

        class Planted(kind):  # type: ignore[misc]
            scaled_source = str(path)

        run_calls(
            *(call, Planted(1, 32, max_stages=2)),
            lambda: found.choose_in(seen.kernels, defect),
            is_sound=defect is None,
        )


def run_calls(call: Any, config: Any, choose: Callable[[], None], *, is_sound: bool) -> None:
    """Make three calls, of which the third uses the memory of the first.

    A rank without rows waits for less, or others wait for it less: they are a call ahead.
    """
    rng = np.random.default_rng(0)
    drawn: Any = (
        functools.partial(drawn_shards, rng, ROWS, 160, (32, 32, 32))
        if call is GATHER
        else functools.partial(drawn_parts, rng, sum(ROWS), (160, 32, 32), 32)
    )
    shapes = [(sum(ROWS) if call is GATHER else count, 32) for count in ROWS]
    with peers(len(ROWS)) as world, tile_configs(lambda _: config):
        calls = []
        for _ in range(3):
            a, b, scale_a, scale_b = operands = drawn()
            right = [one.T for one in arrays_on(world, [one.T for one in b])]
            given = arrays_on(world, a), right, arrays_on(world, scale_a)
            out = poisoned(world, shapes, np.float32)
            call(*given, arrays_on(world, scale_b), out=out)
            calls.append((out, operands))
        choose()
        world.synchronize()
        if is_sound:
            for found, operands in calls:
                check(call, found, operands)


def check(call: Any, found: list[Any], operands: Any) -> None:
    if call is GATHER:
        assert all(map(np.array_equal, found, multiplied(*operands)))
    else:
        assert np.array_equal(np.concatenate(found), sum(terms(*operands)))


gathered = functools.partial(run, GATHER, AllGatherScaledConfig, "all_gather_scaled_gemm.cu")
scattered = functools.partial(run, SCATTER, ScaledScatterConfig, "scaled_gemm_reduce_scatter.cu")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", GATHER_DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_of_the_gather_is_reported_in_any_order(defect: Defect) -> None:
    check_reported(defect, lambda: gathered(defect))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", SCATTER_DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_of_the_scatter_is_reported_in_any_order(defect: Defect) -> None:
    check_reported(defect, lambda: scattered(defect))


@pytest.mark.slow
@pytest.mark.parametrize("sound", [gathered, scattered], ids=["gather", "scatter"])
def test_sound_kernels_are_silent(sound: Any) -> None:
    in_orders(2, lambda: sound(None))
