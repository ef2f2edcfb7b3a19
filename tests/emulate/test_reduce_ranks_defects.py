"""Defects planted in reduce_ranks.cu are reported, whatever the order."""

from __future__ import annotations

from types import SimpleNamespace
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
from tmaasync.ops import _reduce_ranks

KERNEL = "reduce_ranks.cu"
COPY = Kernel(
    """
extern "C" __global__ void copy(const float* source, float* target, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i];
}
""",
    "copy",
)

DEFECTS = defects(
    KERNEL,
    ("arrays are loaded before their ranks have entered the round",
     without("if (peer != round.signals.rank) round.signals.wait(peer, round.epoch);"), RACE,
     "race on"),
    ("the round before is waited for",
     Edit("round.signals.wait(peer, round.epoch);", "round.signals.wait(peer, round.epoch - 1);"),
     RACE, "race on"),
    ("a rank enters one round early",
     Edit("signals.post(peer, signals.rank, epoch);",
          "signals.post(peer, signals.rank, epoch + 1);"), RACE, "race on"),
    ("a rank never enters", Edit("signals.post(peer, signals.rank, epoch);", "(void)peer;"),
     DEADLOCK, "Signals::wait"),
    ("sums are announced before their stores are complete", without("wait_group<0>();"), REPORTED,
     "race on|wait_group"),
    ("only the reads of the stores are waited for",
     Edit("wait_group<0>();", "wait_group_read<0>();"), RACE, r"wait_group<0>\(\)"),
    ("the end is not announced", without("round.signals.post(peer, signal, round.epoch);"),
     DEADLOCK, "Signals::wait"),
    ("the end is announced with the next epoch",
     Edit("post(peer, signal, round.epoch)", "post(peer, signal, round.epoch + 1)"), RACE,
     "race on"),
    ("the end is announced to the own rank",
     Edit("post(peer, signal, round.epoch)", "post(round.signals.rank, signal, round.epoch)"),
     REPORTED, "Signals::wait|race on"),
    ("the end of the others is not waited for",
     without("round.signals.wait(round.signal_of(peer, blockIdx.x), round.epoch);"), RACE,
     "race on"),
    ("the end of the last round is waited for",
     Edit("wait(round.signal_of(peer, blockIdx.x), round.epoch)",
          "wait(round.signal_of(peer, blockIdx.x), round.epoch - 1)"), RACE, "race on"),
    ("a sum is stored before all threads have written it",
     without("fence_async_view_proxy(); consumers.sync();"), REPORTED,
     "race on|nothing has written"),
    ("a buffer is written while it is stored", without("wait_group_read<1>();"), RACE, "race on"),
)  # fmt: skip


def reduce(world: World) -> None:
    """Sums of what other kernels write, in memory that they read; a CTA has several tiles."""
    arrays, sums = (arrays_on(world, [np.ones((100, 64), np.float32)] * RANKS) for _ in range(2))
    for _ in range(3):
        ops.all_reduce(arrays, out=sums)
        for one, total in zip(arrays, sums, strict=True):
            COPY(1, 32, (total, one, total.size))
    shards = ops.reduce_scatter(arrays)
    for one, total in zip(arrays, sums, strict=True):
        COPY(1, 32, (total, one, total.size))
    world.synchronize()
    assert all((one == RANKS**3).all() for one in sums)
    assert all((one == RANKS**4).all() for one in shards)


def plant(monkeypatch: pytest.MonkeyPatch, defect: Defect | None) -> None:
    """Have the operations build their kernel with this defect."""
    found = choices(whole_text(KERNEL), DEFECTS)

    def kernel(source: str, types: Any, constants: Any) -> Kernel:
        assert source == KERNEL
        return found.kernel(defect, "reduce_ranks", types, constants)

    monkeypatch.setattr(_reduce_ranks, "shipped_kernel", kernel)
    small = SimpleNamespace(limits=SimpleNamespace(sms=1), wait_for_producers=lambda *_: None)
    monkeypatch.setattr(_reduce_ranks, "backend_of", lambda _: small)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.key)
def test_a_defect_is_reported_whatever_the_order(
    monkeypatch: pytest.MonkeyPatch, defect: Defect
) -> None:
    plant(monkeypatch, defect)

    check_reports(defect, reduce, None)


def test_without_a_defect_there_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, None)

    check_silence(reduce, None)
