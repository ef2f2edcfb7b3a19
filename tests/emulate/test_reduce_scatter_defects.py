"""Defects planted in gemm_reduce_scatter.cu are reported, whatever the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulate.shipped import whole_text
from planted import DEADLOCK, RACE, Defect, Edit, defects, without
from planted_choices import choices
from rank_defects import RANKS, REPORTED, check_reports, check_silence
from worlds import arrays_on

from tmaasync import Kernel, ops
from tmaasync.emulate.launch.world import World
from tmaasync.ops import _matmul_reduce
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_constants

pytestmark = pytest.mark.slow

KERNEL = "gemm_reduce_scatter.cu"
CONFIG = TileConfig(1, 64, max_stages=4)
K = 64

DEFECTS = defects(
    KERNEL,
    ("a part is announced before its stores are complete", without("wait_group<0>();"), RACE,
     "race on"),
    ("only the reads of the stores are waited for",
     Edit("wait_group<0>();", "wait_group_read<0>();"), RACE, r"wait_group<0>\(\)"),
    ("a part is not announced",
     without("round_.signals.post(sent_to_, ...);"), DEADLOCK, "Signals::wait"),
    ("the last part is not announced", without("scatter.announce();"), DEADLOCK, "Signals::wait"),
    ("a part is announced to its own rank",
     Edit("round_.signals.post(sent_to_,", "round_.signals.post(round_.signals.rank,"),
     REPORTED, "Signals::wait|race on"),
    ("a part is announced with the next epoch",
     Edit("sent_slot_), round_.epoch);", "sent_slot_), round_.epoch + 1);"), RACE,
     "race on"),
    ("parts are not waited for", without("wait_for_all(slot);"), RACE, "race on"),
    ("parts of the last round are waited for",
     Edit("wait(round_.signal_of(source, slot), round_.epoch)",
          "wait(round_.signal_of(source, slot), round_.epoch - 1)"), RACE, "race on"),
    ("every thread reads before the leader has waited",
     Edit("if (leads()) { wait_for_all(slot);",
          "add_.apply_chunk(accumulators[0], tile); if (leads()) {"), RACE, "race on"),
    ("a peer's room is not waited for",
     without("round_.signals.wait(tile.owner, round_.epoch - 1);"), RACE, "race on"),
    ("a peer may be two rounds ahead",
     Edit("round_.signals.wait(tile.owner, round_.epoch - 1);",
          "round_.signals.wait(tile.owner, round_.epoch - 2);"), RACE, "race on"),
    ("rows that belong to another tile are read",
     Edit("row < first || row >= rows", "row < 0 || row >= rows"), RACE, "race on"),
    ("rows after the shard are read",
     Edit("row < first || row >= rows", "row < first"), REPORTED, "race on|lies in none"),
)  # fmt: skip


def multiply(world: World) -> None:
    """Three calls of different shards, in one workspace."""
    for rows in ((90, 140), (230, 0), (140, 90)):
        a = arrays_on(world, [np.ones((230, K), np.float16)] * RANKS)
        b = arrays_on(world, [np.ones((K, 64), np.float16)] * RANKS)
        out = [np.zeros((count, 64), np.float16) for count in rows]
        found = ops.matmul_reduce_scatter(a, b, out=arrays_on(world, out))
    world.synchronize()
    assert all((one == RANKS * K).all() for one in found)


def plant(monkeypatch: pytest.MonkeyPatch, defect: Defect | None) -> None:
    """Have the operation build its kernel with this defect."""
    found = choices(whole_text(KERNEL), DEFECTS)

    def kernel(types: Any, b_transposed: bool, config: TileConfig, *, all_reduce: bool) -> Kernel:
        assert not all_reduce
        named = dict(zip(("ATile", "BTile", "CTile"), types, strict=True))
        constants = gemm_constants(False, b_transposed, config)
        return found.kernel(defect, "gemm_reduce_scatter", named, constants)

    monkeypatch.setattr(_matmul_reduce, "reduce_scatter_kernel", kernel)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.key)
def test_a_defect_is_reported_whatever_the_order(
    monkeypatch: pytest.MonkeyPatch, defect: Defect
) -> None:
    plant(monkeypatch, defect)

    check_reports(defect, multiply, CONFIG)


def test_without_a_defect_there_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, None)

    check_silence(multiply, CONFIG)
