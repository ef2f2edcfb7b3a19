"""Grouped and batched matmul on the chip at sizes that fill it, in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ArgumentError, ops

cupy = pytest.importorskip("cupy")

TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4}


def zipf(rows: int, groups: int, seed: int) -> Any:
    """Where groups end whose rows go like 1, 1/2, 1/3, ..., in any order."""
    shares = 1 / np.arange(1, groups + 1)
    sizes = np.floor(rows * shares / shares.sum()).astype(np.int32)
    return np.cumsum(np.random.default_rng(seed).permutation(sizes), dtype=np.int32)


def normal(*shape: int, dtype: str, seed: int) -> Any:
    drawn = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return cupy.asarray(drawn.astype(np.dtype(getattr(ml_dtypes, dtype, dtype))))


def host(array: Any) -> Any:
    return cupy.asnumpy(array).astype(np.float64)


def assert_right(out: Any, a: Any, b: Any, ends: Any, dtype: str) -> None:
    for start, end, matrix in zip([0, *ends[:-1]], ends, b, strict=True):
        if start == end:
            continue
        wanted = host(a[start:end]) @ host(matrix)
        error = np.linalg.norm(host(out[start:end]) - wanted) / np.linalg.norm(wanted)
        assert error < TOLERANCE[dtype], (start, end)
    assert np.isnan(host(out[ends[-1] :])).all()


@pytest.mark.parametrize("stored", ["gkn", "gnk"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("rows", "groups", "n", "k"),
    [
        (16384, 8, 1024, 512),
        (9973, 61, 776, 520),
        (700, 128, 1032, 264),
        (3000, 64, 512, 1024),
        (33, 200, 256, 128),
    ],
)
def test_zipf_rows(rows: int, groups: int, n: int, k: int, dtype: str, stored: str) -> None:
    ends = zipf(rows - 5, groups, seed=groups)
    a = normal(rows, k, dtype=dtype, seed=1)
    b = normal(groups, *((k, n) if stored == "gkn" else (n, k)), dtype=dtype, seed=2)
    b = b if stored == "gkn" else b.swapaxes(1, 2)
    out = cupy.full((rows, n), np.nan, a.dtype)

    for _ in range(2):  # the second time by the plan of the first
        ops.grouped_matmul(a, b, cupy.asarray(ends), out=out)

    assert_right(out, a, b, ends, dtype)


def test_the_same_groups_give_the_same_bits() -> None:
    ends = cupy.asarray(zipf(20000, 40, seed=3))
    a = normal(20000, 712, dtype="bfloat16", seed=4)
    b = normal(40, 712, 1000, dtype="bfloat16", seed=5)
    out = cupy.zeros((20000, 1000), a.dtype)
    first = cupy.asnumpy(ops.grouped_matmul(a, b, ends, out=out)).copy()

    for _ in range(50):
        assert (cupy.asnumpy(ops.grouped_matmul(a, b, ends, out=out)) == first).all()
    outs = [ops.grouped_matmul(a, b, ends) for _ in range(5)]
    assert len({out.data.ptr for out in outs}) == 5
    for out in outs:
        assert (cupy.asnumpy(out) == first).all()


def test_offsets_that_the_kernel_ahead_makes_are_waited_for() -> None:
    """Blocks start before the launch ahead has ended; offsets are read after it has."""
    a = normal(4096, 256, dtype="bfloat16", seed=6)
    b = normal(8, 256, 512, dtype="bfloat16", seed=7)
    out = cupy.full((4096, 512), np.nan, a.dtype)
    ends, offsets = zipf(4096, 8, seed=8), cupy.zeros(8, np.int32)
    final = cupy.asarray(ends)

    for _ in range(20):
        offsets[...] = 0
        ops.grouped_matmul(a, b, offsets, out=out)
        offsets[...] = final
        ops.grouped_matmul(a, b, offsets, out=out)

    assert_right(out, a, b, ends, "bfloat16")


def test_ends_on_the_device_never_lead_beyond_the_arrays() -> None:
    """Where they cannot be checked: decreasing ones, and one after the last row."""
    a = normal(200, 64, dtype="bfloat16", seed=9)
    b = normal(3, 64, 64, dtype="bfloat16", seed=10)
    out = cupy.full((200, 64), np.nan, a.dtype)

    ops.grouped_matmul(a, b, cupy.asarray([90, 40, 999], np.int32), out=out)

    assert_right(out, a, b, np.array([90, 90, 200]), "bfloat16")
    right = cupy.asarray([90, 90, 200], np.int32)
    with pytest.raises(ArgumentError, match=r"offsets\[\d\] of an earlier call is wrong"):
        ops.grouped_matmul(a, b, right)
    ops.grouped_matmul(a, b, right)


@pytest.mark.parametrize("shape", [(16, 384, 520, 256), (7, 33, 1032, 264), (3, 1025, 257, 129)])
@pytest.mark.parametrize("stored", ["kn", "nk"])
def test_batches_fill_the_chip(shape: tuple[int, int, int, int], stored: str) -> None:
    batch, m, n, k = shape
    a = normal(batch, m, k, dtype="bfloat16", seed=11)
    b = normal(batch, *((k, n) if stored == "kn" else (n, k)), dtype="bfloat16", seed=12)
    b = b if stored == "kn" else b.swapaxes(1, 2)
    out = cupy.full((batch, m, n), np.nan, a.dtype)

    for _ in range(2):  # the second time by the plan of the first
        ops.matmul(a, b, out=out)

    wanted = host(a) @ host(b)
    error = np.linalg.norm(host(out) - wanted, axis=(1, 2)) / np.linalg.norm(wanted, axis=(1, 2))
    assert (error < TOLERANCE["bfloat16"]).all()
