"""Products whose K is split, run again and again: the same bits, whatever order CTAs end in."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import _arrays, ops
from tmaasync._streams import stream_of
from tmaasync.ops.gemm import Blocking
from tmaasync.ops.gemm.blocking import FEW_ROWS
from tmaasync.ops.gemm.choice import default_blocking
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import new_plan
from tmaasync.ops.gemm.problem import Problem

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


def is_split(m: int, n: int, k: int, operands: str) -> bool:
    is_few = m <= FEW_ROWS  # then the transposes are multiplied
    sides = (n, m) if is_few else (m, n)
    problem = Problem(*sides, k, 1, operands, "float32", "nt", is_few, True)
    return default_blocking(problem, 132).split > 1


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("rows", [24, 200])
def test_other_types_are_split_too(kind: str, rows: int) -> None:
    m, n, k = rows, 264, 16384
    rng = np.random.default_rng(3)
    a, b = (
        rng.integers(-2, 3, shape).astype(getattr(ml_dtypes, kind, kind))
        for shape in ((m, k), (n, k))
    )
    options: dict[str, Any] = {}
    stored = a, b
    if kind == "float8_e4m3fn":
        stored = a.view(np.uint8), b.view(np.uint8)
        options = {"a_dtype": kind, "b_dtype": kind, "dtype": "float32"}
    if kind == "float32":
        options = {"precision": "tf32"}
    left, right = map(cupy.asarray, stored)

    c = ops.matmul(left, right.T, **options)

    assert is_split(m, n, k, kind)
    assert np.array_equal(cupy.asnumpy(c), a.astype(np.float64) @ b.astype(np.float64).T)
