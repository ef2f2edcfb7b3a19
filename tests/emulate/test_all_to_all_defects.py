"""Defects planted in all_to_all.cu are reported, and the sound kernel is silent."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.shipped import whole_text
from exchange_cases import drawn_tokens, packed
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without
from planted_choices import choices
from planted_runs import check_reported, in_orders
from worlds import arrays_on, peers, poisoned

from tmaasync import Kernel, ops
from tmaasync.kernel.observed import observe
from tmaasync.ops._all_to_all import ExchangeConfig
from tmaasync.ops._operation import tile_configs

COPY = Kernel(
    """
extern "C" __global__ void copy(const float* source, float* target, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i];
}
""",
    "copy",
)
COUNTS = np.array([[9, 20, 0, 33], [17, 3, 25, 8]], np.int32)
DEFECTS = defects(
    "all_to_all.cu",
    ("counts are read before they have arrived", without("exchange.wait_for_counts();"),
     RACE + FAULT, "race on|sequence"),
    ("one thread waits for all counts", Edit("threadIdx.x < ranks()", "threadIdx.x < 1"),
     RACE + FAULT, "race on|sequence"),
    ("counts are announced by the signal of the round before",
     Edit("lane_index(), rank(), epoch", "lane_index(), rank(), epoch - 1", "publish"),
     DEADLOCK + FAULT, "epoch"),
    ("no rank announces its counts",
     without("if (lane_index() < ranks()) signals.post(...);", "publish"), DEADLOCK,
     "waits for epoch 1 of signal"),
    ("the end is announced before the stores are done", without("wait_group<0>();", "finish"), RACE,
     "the store may not have"),
    ("a rank does not wait for the rows of others",
     without("if (peer != rank()) signals.wait(...);", "finish"), RACE, "race on"),
    ("a rank announces no end", without("if (peer != rank()) signals.post(...);", "finish"),
     DEADLOCK, "waits for epoch 1 of signal"),
    ("all ranks store where the rows of the first belong",
     Edit("segments.stored[task * owned() + expert] = start",
          "segments.stored[task * owned() + expert] = source ? start - rows : start",
          "find_dispatched"), RACE + FAULT, r"race on target|sequence"),
    ("a segment ends with its last tile",
     Edit("RaggedSequence rows{segments.stored[i], segments.rows[i]}",
          "RaggedSequence rows{segments.stored[i], segments.rows[i] + 15 & -16}"), RACE + FAULT,
     r"race on target|sequence"),
    ("each thread block enters a round of its own",
     Edit("enter_round(rounds, blockIdx.x, gridDim.x)", "enter_round(rounds, 0, 1)"),
     DEADLOCK + FAULT + RACE, "epoch|race on"),
)  # fmt: skip


def run(defect: Defect | None) -> None:
    """Dispatch, read and combine, twice. A sound kernel's results are right."""
    found = choices(whole_text("all_to_all.cu"), DEFECTS)

    class Planted(ExchangeConfig):
        source = found.text_with(defect)

    tokens = drawn_tokens(np.random.default_rng(0), COUNTS, (160,), np.float32)
    rows = packed(tokens, COUNTS)
    with peers(2) as world, tile_configs(lambda _: Planted()), observe() as seen:
        given, calls = arrays_on(world, list(COUNTS)), []
        for _ in range(2):
            out, copies, back = (
                poisoned(world, [one.shape for one in of], np.float32)
                for of in (rows, rows, tokens)
            )
            ops.all_to_all(arrays_on(world, tokens), given, out)
            for one, copied in zip(out, copies, strict=True):
                COPY(1, 32, (one, copied, one.size))
            calls.append((out, ops.all_to_all(out, given, back, combine=True)))
        found.choose_in(seen.kernels, defect)
        world.synchronize()
        if defect is None:
            for out, back in calls:
                assert all(map(np.array_equal, out, rows))
                assert all(map(np.array_equal, back, tokens))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_reported_in_any_order(defect: Defect) -> None:
    check_reported(defect, lambda: run(defect))


@pytest.mark.slow
def test_the_sound_kernel_is_silent() -> None:
    in_orders(2, lambda: run(None))
