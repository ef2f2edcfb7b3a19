"""Products whose K is split, run again and again: the same bits, whatever order CTAs end in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import _arrays
from tmaasync._streams import stream_of
from tmaasync.ops.gemm import Blocking
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import new_plan

cupy = pytest.importorskip("cupy")

RUNS = 1000


def normal(shape: tuple[int, int], seed: int) -> Any:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return cupy.asarray(drawn.astype(np.float16))


@pytest.mark.parametrize(
    ("blocking", "shape"),
    [
        (Blocking(2, 256, split=2), (1000, 1032, 4104)),
        (Blocking(2, 192, split=3), (700, 800, 16400)),
        (Blocking(2, 128, split=6), (500, 512, 16384)),
        (Blocking(2, 128, 2, split=4), (500, 520, 8200)),
        (Blocking(1, 64, split=8), (300, 200, 16400)),
        (Blocking(1, 64, split=5, by_columns=True), (64, 1000, 16384)),
        (Blocking(2, 32, split=8, by_columns=True), (24, 1000, 8200)),
    ],
    ids=str,
)
def test_a_thousand_runs_give_the_same_bits(
    blocking: Blocking, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = normal((m, k), 1), normal((n, k), 2).T
    out = cupy.full((m, n), cupy.nan, cupy.float32)
    views = left, right, target = _arrays.view(a), _arrays.view(b), _arrays.view(out)
    plan = new_plan(Matrix.of(left), Matrix.of(right), Matrix.of(target), blocking)
    plan.run(left, right, target, None)
    first = out.copy()
    assert plan.is_direct
    differing = cupy.zeros((), cupy.int64)
    addresses = [view.address for view in views]
    stream = stream_of(("cupy",), target.device)

    for _ in range(RUNS):
        out.fill(cupy.nan)
        plan.start(addresses, stream)
        differing += cupy.count_nonzero(out.view(cupy.int32) != first.view(cupy.int32))

    wanted = cupy.asnumpy(a).astype(np.float64) @ cupy.asnumpy(b).astype(np.float64)
    error = np.linalg.norm(cupy.asnumpy(first) - wanted) / np.linalg.norm(wanted)
    assert error < 2e-5
    assert int(differing) == 0
