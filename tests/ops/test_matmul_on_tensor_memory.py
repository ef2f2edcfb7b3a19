"""Matmuls, grouped matmuls and convolutions on chips with tensor memory, with races searched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import emulate, ops
from tmaasync.kernel.observed import observe

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SIZES = (1, 8, 63, 64, 129, 300)


@pytest.fixture(autouse=True, params=["sm_100a"])
def chip(request: pytest.FixtureRequest) -> Iterator[str]:
    with emulate.chip(request.param), emulate.scheduled("random", seed=1, races=True):
        yield str(request.param)


def stored(matrix: Any, rng: np.random.Generator) -> Any:
    """Return the same matrix in one of four layouts."""
    form = rng.integers(4)
    if form == 1:
        return np.asfortranarray(matrix)
    if form == 2:
        return np.concatenate([matrix, matrix], axis=-1)[..., : matrix.shape[-1]]
    if form == 3:
        return np.repeat(matrix, 2, axis=-1)[..., ::2]
    return matrix


def check(c: Any, a: Any, b: Any) -> None:
    expected = a.astype(np.float64) @ b.astype(np.float64)
    rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-20}[c.dtype.name]
    bound = rounding * (np.abs(expected) + np.sqrt(a.shape[-1]))
    assert (np.abs(c.astype(np.float64) - expected) <= bound).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_types_and_layouts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = (np.float16, ml_dtypes.bfloat16)[seed % 2]
    m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
    batch = (2,) if seed % 3 == 2 else ()
    a = rng.standard_normal((*batch, m, k)).astype(dtype)
    b = rng.standard_normal((k, n) if seed == 5 else (*batch, k, n)).astype(dtype)

    c = ops.matmul(stored(a, rng), stored(b, rng), dtype=(None, "float32")[seed % 2])

    check(c, a, b)


def test_an_output_whose_columns_are_contiguous() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((130, 40), (40, 72)))
    c = np.full((72, 136), np.nan, np.float16).T[:130]

    check(ops.matmul(a, b, out=c), a, b)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chip", ["sm_100a", "sm_103a"], indirect=True)  # of integers 100 alone
@pytest.mark.parametrize("name", ["tf32", "float8", "integers"])
def test_every_type_of_operand(name: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 8, shape) for shape in ((140, 48), (48, 72)))
    types = {"tf32": ("f4", "f4"), "float8": (E4M3, E5M2), "integers": ("i1", "u1")}[name]
    left, right = a.astype(types[0]), np.abs(b).astype(types[1])
    more: dict[str, Any] = {"precision": "tf32"} if name == "tf32" else {}

    c = ops.matmul(left, right, dtype="int32" if name == "integers" else "float32", **more)

    assert np.array_equal(c, a @ np.abs(b))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_column_major", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_epilogue(dtype: str, is_column_major: bool) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((144, 40), (40, 72)))
    addend, bias = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((144, 72), 72))
    expected = 2 * (a.astype(np.float64) @ b.astype(np.float64)) * 0.5 + 3 * addend + bias
    out = np.asfortranarray(addend) if is_column_major else addend.copy()
    given: dict[str, Any] = {
        "alpha": 2.0,
        "scale_a": 0.5,
        "beta": 3.0,
        "bias": bias.astype(np.float32),
    }

    ops.matmul(a, b, c=out, out=out, activation="relu", **given)

    assert np.array_equal(out, np.maximum(expected, 0))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_few_tiles_of_a_long_k_are_split_over_the_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = int(rng.integers(1, 300)), int(rng.integers(1, 200)), int(rng.integers(1500, 3000))
    dtype, summed = (
        ("f2", "f4"),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (E4M3, "f4"),
        ("i1", "i4"),
    )[seed]
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (n, k)))
    out = np.full((m, -(-n // 8) * 8), -1, summed)[:, :n]

    with observe() as seen:
        ops.matmul(a, b.T, out=out)

    assert [one.source.name for one in seen.kernels] == [
        "gemm_tensor_memory.cu",
        "split_k_combine.cu",
    ]
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    assert np.array_equal(out.astype(np.float64), exact.astype(summed).astype(np.float64))
    whole = ops.matmul(a, b.T, dtype=out.dtype, batch_invariant=True)
    assert np.array_equal(whole, out)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_random_groups(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = (np.float16, ml_dtypes.bfloat16)[seed % 2]
    n, k = (int(rng.choice(SIZES)) for _ in range(2))
    ends = np.cumsum(rng.choice([0, 1, 40, 128, 130, 300], 5)).astype(np.int32)
    a = rng.standard_normal((ends[-1] + 9, k)).astype(dtype)
    b = rng.standard_normal((5, k, n)).astype(dtype)
    a[ends[-1] :] = np.nan  # these rows belong to no group
    out = np.full((len(a), -(-n // 8) * 8), np.nan, (dtype, np.float32)[seed // 2])[:, :n]

    ops.grouped_matmul(stored(a, rng), stored(b, rng), ends, out=out)

    for start, end, matrix in zip([0, *ends], ends, b, strict=False):
        check(out[start:end], a[start:end], matrix)
    assert np.isnan(out[ends[-1] :]).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_random_groups_along_k(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = (np.float16, ml_dtypes.bfloat16)[seed % 2]
    m, n = (int(rng.choice(SIZES)) for _ in range(2))
    ends = np.cumsum(rng.choice([0, 1, 40, 64, 130, 300], 5)).astype(np.int32)
    a, b = (rng.standard_normal((ends[-1] + 9, side)).astype(dtype) for side in (m, n))
    a[ends[-1] :] = np.nan  # these rows belong to no group
    out = np.full((5, m, -(-n // 8) * 8), np.nan, (dtype, np.float32)[seed // 2])[..., :n]

    ops.k_grouped_matmul(a.T, stored(b, rng), ends, out=out)

    for one, start, end in zip(out, [0, *ends], ends, strict=False):
        check(one, a[start:end].T, b[start:end])


def convolved(images: Any, filters: Any, stride: int, padding: int) -> Any:
    sides = (padding, padding)
    padded = np.pad(images.astype(np.float64), ((0, 0), sides, sides, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, filters.shape[1:3], axis=(1, 2))
    return np.einsum(
        "npqcrs,krsc->npqk", windows[:, ::stride, ::stride], filters.astype(np.float64)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_random_convolutions(seed: int) -> None:
    """Of one CTA and of pairs, with boxes of 16, 32 and 64 channels, folded ones included."""
    rng = np.random.default_rng(seed)
    channels, size = int(rng.choice([8, 24, 32, 64, 96])), 2 * int(rng.integers(3, 8))
    taps, stride, padding = int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(2))
    count, filter_count = int(rng.integers(1, 4)), int(rng.choice([5, 16, 72, 300]))
    dtype = (np.float16, ml_dtypes.bfloat16)[seed % 2]
    images, filters = (
        rng.integers(-3, 4, shape).astype(dtype)
        for shape in ((count, size, size, channels), (filter_count, taps, taps, channels))
    )
    bias = rng.integers(-9, 10, filter_count).astype(np.float32)
    exact = np.maximum(convolved(images, filters, stride, padding) + bias, 0)
    out = np.full((*exact.shape[:3], -(-filter_count // 8) * 8), np.nan, np.float32)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "activation": "relu"}

    ops.conv2d(images, filters, bias=bias, out=out[..., :filter_count], **options)

    assert np.array_equal(out[..., :filter_count], exact)
    assert np.isnan(out[..., filter_count:]).all()
