"""The GEMM of the tutorial's step 11: rings of operands and of accumulators, races searched."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import emulate

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("11_tensor_memory_gemm")


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes_types_tiles_and_orders(
    example: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers(1, 500, 3))
    n, k = -(-n // 8) * 8, -(-k // 8) * 8
    dtype = np.float16 if seed % 2 else ml_dtypes.bfloat16
    a, b = (rng.standard_normal((rows, k)).astype(dtype) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32 if seed % 3 == 0 else dtype)
    monkeypatch.setattr(example, "CTAS", int(rng.integers(1, 4)))

    with emulate.scheduled("random", seed=seed, races=True):
        example.bind(a, b, c, columns=(64, 128, 256)[seed % 3])()

    expected = a.astype(np.float64) @ b.astype(np.float64).T
    rounding = {2: 2.0**-8 if dtype is ml_dtypes.bfloat16 else 2.0**-10, 4: 2.0**-20}
    bound = rounding[c.itemsize] * (np.abs(expected) + np.sqrt(k))
    assert (np.abs(c.astype(np.float64) - expected) <= bound).all()
