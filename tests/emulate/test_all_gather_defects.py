"""Defects planted in all_gather.cu and all_gather_gemm.cu are reported, whatever the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulate.shipped import whole_text
from planted import DEADLOCK, RACE, Defect, Edit, defects, exchanged, without
from planted_choices import choices
from rank_defects import RANKS, REPORTED, Run, check_reports, check_silence
from worlds import arrays_on

from tmaasync import Kernel, ops
from tmaasync.emulate.launch.world import World
from tmaasync.ops import _all_gather, _all_gather_matmul
from tmaasync.ops._gemm.all_gather import AllGatherTileConfig
from tmaasync.ops._gemm.tiles import gemm_constants

pytestmark = pytest.mark.slow

K = 2100  # five units along K, two tokens
COPY = Kernel(
    """
extern "C" __global__ void copy(const ushort* source, ushort* target, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i];
}
""",
    "copy",
)
CONFIG = AllGatherTileConfig(1, 64, max_stages=4)

GEMM = defects(
    "all_gather_gemm.cu",
    ("rows are not waited for", without("round.wait_for_rows(...);"), RACE, "TMA load"),
    ("the producer takes no tokens", without("shared.arrivals.take(next);"), REPORTED, ""),
    ("rows of the last round are waited for",
     Edit("signals.wait(signal_of(source, unit), epoch);",
          "signals.wait(signal_of(source, unit), epoch - 1);", "wait_for_rows"), RACE, "TMA load"),
    ("only the first unit of a token is waited for",
     Edit("column + kWaitColumns)", "column + kUnitColumns)", "pass_tokens"), RACE, "TMA load"),
    ("the producer takes one token per tile", Edit("if (at_k % kWaitColumns == 0)",
     "if (at_k == 0)"), REPORTED, ""),
    ("a peer may be two rounds ahead", Edit("round.epoch - 1,", "round.epoch - 2,"), RACE,
     "race on"),
    ("a token waits for one unit", Edit("i < count * across", "i < 1", "wait_for_rows"), RACE,
     "TMA load"),
    ("own rows next to a peer's are not in the buffer",
     Edit("own_rows.serves(row, rows)", "true"), DEADLOCK, "Signals::wait"),
)  # fmt: skip
# Steps of gather_round.cuh and shards.cuh, which both kernels have.
PLAIN = defects(
    "all_gather.cu",
    ("a unit is announced before its stores are complete",
     exchanged("wait_group<0>();", "signals.post(peer, signal_of(rank, unit), epoch);"), RACE,
     "race on"),
    ("only the reads of the stores are waited for",
     Edit("wait_group<0>();", "wait_group_read<0>();", "GatherRound::push"), RACE,
     r"wait_group<0>\(\)"),
    ("a unit is not announced", without("signals.post(peer, signal_of(rank, unit), epoch);"),
     DEADLOCK, r"Signals::wait: rank \d waits for epoch 1"),
    ("a unit is announced to its own rank",
     Edit("signals.post(peer, signal_of(rank, unit), epoch);",
          "signals.post(rank, signal_of(rank, unit), epoch);"), REPORTED, "Signals::wait|race on"),
    ("a unit is announced with the next epoch",
     Edit("signals.post(peer, signal_of(rank, unit), epoch);",
          "signals.post(peer, signal_of(rank, unit), epoch + 1);"), RACE, "race on"),
    ("the peer's room is not waited for",
     without("if (!(with_room >> peer & 1)) signals.wait(peer, free_epoch);"), RACE, "race on"),
    ("a rank lets its peers store one round early",
     Edit("signals.post(peer, signals.rank, epoch);",
          "signals.post(peer, signals.rank, epoch + 1);"), RACE, "race on"),
    ("a rank never lets its peers store",
     Edit("signals.post(peer, signals.rank, epoch);", "(void)peer;"), DEADLOCK, "Signals::wait"),
    ("every launch is the first round",
     Edit("static_cast<u32>(atomicAdd(counter, share) / kRoundStep) + 1", "1"), RACE, "race on"),
    ("the kernel ends before all rows have arrived",
     without("round.wait_for_peers(blockIdx.x, gridDim.x);"), RACE, "race on"),
    ("an output is stored while a kernel of the peer reads it",
     Edit("round.epoch, false, [](int, int)", "round.epoch - 1, false, [](int, int)"), RACE,
     "race on"),
)  # fmt: skip


def multiply(world: World) -> None:
    """Three matmuls of different shards, in one workspace.

    A rank with an empty shard sends nothing, by which its peer would know how far it is. Tiles lie
    in both shards, and in two units of a shard.
    """
    for rows in ((30, 90), (120, 0), (90, 30)):
        a = [np.ones((count, K), np.float16) for count in rows]
        b = [np.ones((K, 64), np.float16)] * RANKS
        out = ops.all_gather_matmul(arrays_on(world, a), arrays_on(world, b))
    world.synchronize()
    assert all((one == K).all() for one in out)


def gather(world: World) -> None:
    """Gather three times into one output, which a kernel reads in between."""
    out = arrays_on(world, [np.zeros((230, 304), np.float16)] * RANKS)
    for rows in ((90, 140), (150, 80), (90, 140)):
        ops.all_gather(
            arrays_on(world, [np.ones((count, 304), np.float16) for count in rows]), out=out
        )
        copies = arrays_on(world, [np.zeros((230, 304), np.float16)] * RANKS)
        for one, copied in zip(out, copies, strict=True):
            COPY(1, 32, (one, copied, one.size))
    world.synchronize()
    assert all((one == 1).all() for one in copies)


def plant(monkeypatch: pytest.MonkeyPatch, kernel: str, defect: Defect | None) -> Run:
    """Have the operation build its kernel with this defect."""
    found = choices(whole_text(kernel), PLAIN if kernel == "all_gather.cu" else GEMM)

    if kernel == "all_gather.cu":

        def plain(_: str, types: Any, constants: Any) -> Kernel:
            return found.kernel(defect, "all_gather", types, constants)

        monkeypatch.setattr(_all_gather, "shipped_kernel", plain)
        return gather

    def gemm(types: Any, push: str, transposed: bool, config: AllGatherTileConfig) -> Kernel:
        named = dict(zip(("ATile", "BTile", "CTile", "PushTile"), (*types, push), strict=True))
        constants = {**gemm_constants(False, transposed, config), "PUSH_STAGES": 2}
        return found.kernel(defect, "all_gather_gemm", named, constants)

    monkeypatch.setattr(_all_gather_matmul, "all_gather_gemm_kernel", gemm)
    return multiply


@pytest.mark.parametrize("defect", GEMM + PLAIN, ids=lambda defect: defect.key)
def test_a_defect_is_reported_whatever_the_order(
    monkeypatch: pytest.MonkeyPatch, defect: Defect
) -> None:
    run = plant(monkeypatch, defect.kernel, defect)

    check_reports(defect, run, CONFIG)


@pytest.mark.parametrize("kernel", ["all_gather.cu", "all_gather_gemm.cu"])
def test_without_a_defect_there_is_no_report(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    run = plant(monkeypatch, kernel, None)

    check_silence(run, CONFIG)
