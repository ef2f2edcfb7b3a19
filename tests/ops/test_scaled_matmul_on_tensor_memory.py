"""ops.scaled_matmul of float32 scales on emulated chips with tensor memory, races searched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import emulate, ops
from tmaasync.ops._gemm.tensor_memory import PromotedConfig
from tmaasync.ops._operation import tile_configs

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-20}
SIZES = (1, 16, 63, 128, 129, 300)


@pytest.fixture(autouse=True)
def chip() -> Iterator[None]:
    with emulate.chip("sm_100a"), emulate.scheduled("random", seed=1, races=True):
        yield


def check(c: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
    """Compare with float64 sums, to rounding and what the tensor cores cut off each term."""
    k, n = b.shape
    wide = scale_b if scale_b.shape[1] == n else np.repeat(scale_b, 128, 1)[:, :n]
    left = a.astype(np.float64) * np.repeat(scale_a.astype(np.float64), 128, 1)[:, :k]
    right = b.astype(np.float64) * np.repeat(wide.astype(np.float64), 128, 0)[:k]
    exact, sizes = left @ right, np.abs(left) @ np.abs(right)
    bound = ROUNDING[c.dtype.name] * np.abs(exact) + 2.0**-19 * sizes
    assert (np.abs(c.astype(np.float64) - exact) <= bound).all()


def stored(scales: Any, form: int) -> Any:
    """Return the same scales in rows, in columns, or with gaps."""
    if form == 1:
        return np.asfortranarray(scales)
    return np.repeat(scales, 2, axis=1)[:, ::2] if form == 2 else scales


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_shapes_types_and_layouts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = (int(rng.choice(SIZES)) for _ in range(2))
    k = int(rng.integers(1, 1500))
    blocks, columns = -(-k // 128), (n, -(-n // 128))[seed % 2]
    a = rng.standard_normal((m, k)).astype((E4M3, E5M2)[int(rng.integers(2))])
    b = rng.standard_normal((n, k)).astype((E4M3, E5M2)[int(rng.integers(2))]).T
    scale_a, scale_b = (
        (10 ** rng.uniform(-3, 3, shape)).astype(np.float32)
        for shape in ((m, blocks), (blocks, columns))
    )
    forms = [int(rng.integers(3)) for _ in range(2)]
    dtype = (np.float32, ml_dtypes.bfloat16)[seed % 2]
    out = np.full((m, -(-n // 8) * 8), np.nan, dtype)[:, :n]

    ops.scaled_matmul(a, b, stored(scale_a, forms[0]), stored(scale_b, forms[1]), out=out)

    check(out, a, b, scale_a, scale_b)


@pytest.mark.parametrize("ctas", [1, 2])
def test_one_cta_and_a_pair(ctas: int) -> None:
    rng, m = np.random.default_rng(ctas), 140 * ctas
    a, b = (rng.integers(-4, 5, (rows, 1300)).astype(E4M3) for rows in (m, 280))
    scale_a, scale_b = (2.0 ** rng.integers(-3, 4, shape) for shape in ((m, 11), (11, 3)))
    config = PromotedConfig(1, 128, ctas, rows=128)

    with tile_configs(lambda _: config):
        c = ops.scaled_matmul(
            a, b.T, scale_a.astype(np.float32), scale_b.astype(np.float32), dtype="float32"
        )

    left = a.astype(np.float64) * np.repeat(scale_a, 128, 1)[:, :1300]
    right = b.T.astype(np.float64) * np.repeat(np.repeat(scale_b, 128, 1)[:, :280], 128, 0)[:1300]
    assert np.array_equal(c, left @ right)


def test_a_nan_scale_stays_in_its_row() -> None:
    a, b = np.ones((130, 256), E4M3), np.ones((40, 256), E4M3)
    scale_a = np.ones((130, 2), np.float32)
    scale_a[7, 1] = np.nan

    c = ops.scaled_matmul(a, b.T, scale_a, np.ones((2, 1), np.float32), dtype="float32")

    assert np.isnan(c[7]).all()
    assert (np.delete(c, 7, 0) == 256).all()
