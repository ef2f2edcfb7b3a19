"""Products whose K is split over the CTAs of a cluster, on either back end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import _arrays, emulate
from tmaasync.ops.gemm import Blocking
from tmaasync.ops.gemm.extras import PLAIN, ExtraForm, Extras, ExtraViews
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import new_plan

ROW_BYTES = 16  # lines of an output that TMA writes are multiples of


def small_integers(shape: tuple[int, ...], seed: int) -> Any:
    """All sums of their products are exact in fp32, whatever the order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(ml_dtypes.bfloat16)


def multiply(
    backend: Any,
    a: Any,
    b: Any,
    blocking: Blocking,
    layout: str = "nt",
    output: str = "float32",
    extras: Extras = PLAIN,
) -> Any:
    """The product in this blocking, in an array among NaNs; ``t``: an operand lies transposed."""
    stored = [
        backend.array(np.ascontiguousarray(matrix.swapaxes(-1, -2))).swapaxes(-1, -2)
        if letter == "t"
        else backend.array(matrix)
        for matrix, letter in zip((a, b), layout, strict=True)
    ]
    kind = np.dtype(getattr(ml_dtypes, output, output))
    n = b.shape[-1]
    pitch = -(-n * kind.itemsize // ROW_BYTES) * ROW_BYTES // kind.itemsize
    lines = (*a.shape[:-2], a.shape[-2] + 2, pitch + 2 * ROW_BYTES)
    whole = backend.array(np.full(lines, np.nan, kind))
    inside = (..., slice(1, -1), slice(ROW_BYTES, ROW_BYTES + n))
    left, right, out = map(_arrays.view, (*stored, whole[inside]))
    more = ExtraViews.of(extras)
    matrices = Matrix.of(left), Matrix.of(right), Matrix.of(out)
    plan = new_plan(*matrices, blocking, ExtraForm.of(extras, more))
    plan.run(left, right, out, None, more, extras)
    got = backend.host(whole).astype(np.float64)
    product = got[inside].copy()
    got[inside] = np.nan
    assert np.isnan(got).all()
    return product


def exact(a: Any, b: Any) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64)


# Blocks of K are 64 deep: 328 are six, for four CTAs; 136 are three, for eight, three or two.
SPLITS = [
    pytest.param(Blocking(1, 128, 2, split=4), "tn", (140, 70, 328), id="pairs of 4"),
    pytest.param(Blocking(1, 16, split=8, by_columns=True), "nt", (11, 100, 136), id="few rows"),
]


@pytest.mark.parametrize(("blocking", "layout", "shape"), SPLITS)
def test_every_split_gives_the_whole_sums(
    backend: Any, blocking: Blocking, layout: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = small_integers((m, k), 1), small_integers((k, n), 2)

    with emulate.scheduled("adversarial", seed=1, races=True):
        product = multiply(backend, a, b, blocking, layout)

    assert np.array_equal(product, exact(a, b))


THREE = Blocking(1, 128, split=3)  # of which two store 64 columns each
FEW_ROWS = Blocking(2, 32, split=2, by_columns=True)


@pytest.mark.parametrize(("blocking", "rows"), [(THREE, 70), (FEW_ROWS, 27)], ids=["3", "few rows"])
def test_a_batch_is_split_before_its_epilogue(backend: Any, blocking: Blocking, rows: int) -> None:
    a, b = small_integers((2, rows, 136), 3), small_integers((2, 136, 90), 4)
    bias = np.random.default_rng(5).integers(-9, 10, 90).astype(np.float32)
    extras = Extras.of(0.5, None, 1.0, backend.array(bias), "relu", None, None)

    with emulate.scheduled("random", seed=2, races=True):
        product = multiply(backend, a, b, blocking, "nt", "bfloat16", extras)

    wanted = np.maximum(0.5 * exact(a, b) + bias, 0).astype(ml_dtypes.bfloat16)
    assert np.array_equal(product, wanted.astype(np.float64))
