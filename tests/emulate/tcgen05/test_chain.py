"""Two chained MMAs with P in tensor memory, as in attention: right, and defects are reported."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from planted import FAULT, RACE, Defect, Edit, defects, without
from planted_choices import choices

from tmaasync import Kernel, emulate
from tmaasync.emulate.launch.schedule import Policy

SOURCE = (Path(__file__).parent / "chain.cu").read_text(encoding="utf-8")
AFTER, BEFORE = "tcgen05_fence_after_thread_sync();", "tcgen05_fence_before_thread_sync();"
DEFECTS = defects(
    "chain",
    ("no fence after the stores of P", without(BEFORE, "soften"), RACE,
     r"(?s)tensor memory.*needs its fences around the barrier.*tcgen05-fence"),
    ("S is read before its MMA is complete", without("shared.s_done.wait(round & 1);"),
     RACE + FAULT, r"(?s)tensor memory.*tcgen05\.(mma|ld|st)|nothing has written"),
    ("S is multiplied anew while P is in use", without("shared.o_done.wait(round & 1);"), RACE,
     r"(?s)two tcgen05\.mma in order only if .*same accumulators"),
    ("O is read before its MMA is complete",
     (without("shared.o_done.wait(round & 1);"),
      without("tcgen05_commit(shared.o_done.address());")), RACE,
     r"(?s)tensor memory.*tcgen05\.mma"),
    ("O overlaps S", Edit("o = s + kO;", "o = s + 16;"), RACE,
     r"(?s)two tcgen05\.mma in order only if .*same accumulators"),
    ("the operands are not made visible", without("fence_async_view_proxy();"), RACE,
     r"(?s)race on [qkv].*not made visible to tcgen05\.mma.*fence_async_view_proxy"),
    ("P begins at a lane of its own", Edit("s + step * 8, v", "s + (1 << 16) + step * 8, v"), FAULT,
     r"A begins at lane 1 of tensor memory; it begins at lane 0"),
)  # fmt: skip
TEXTS = choices(SOURCE, DEFECTS)
ROUNDS = 2
SCHEDULES: list[tuple[Policy, int]] = [("round_robin", 0), ("random", 1), ("adversarial", 2)]


def core_matrices(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return rows of fp16 as core matrices, unit after unit of K."""
    rows, depth = values.shape
    units = values.reshape(rows, depth // 8, 8).transpose(1, 0, 2)
    return np.ascontiguousarray(units).view(np.uint32).ravel()


@functools.cache
def kernel(text: str) -> Kernel:
    return Kernel("#include <cuda_fp16.h>\n" + text, "chain", arch="sm_100a")


def run(defect: Defect | None, policy: Policy, seed: int) -> None:
    rng = np.random.default_rng(7)
    q, k, v = (
        rng.integers(-2, 3, shape).astype(np.float16) for shape in ((128, 16), (64, 16), (16, 64))
    )
    exact = ROUNDS * np.abs(q.astype(np.float64) @ k.astype(np.float64).T) @ v.astype(np.float64).T
    out = np.zeros((128, 16), np.float32)
    built = kernel(TEXTS.text_with(defect))
    TEXTS.choose(built, defect)
    with emulate.scheduled(policy, seed=seed, races=True):
        built(1, 160, (core_matrices(q), core_matrices(k), core_matrices(v), out, ROUNDS))
    np.testing.assert_array_equal(out, exact)


def test_a_chain_is_right_in_every_order() -> None:
    for seed in range(50):
        run(None, "adversarial" if seed % 2 else "random", seed)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(defect: Defect) -> None:
    for policy, seed in SCHEDULES:
        with pytest.raises(defect.reported, match=defect.says):
            run(defect, policy, seed)
