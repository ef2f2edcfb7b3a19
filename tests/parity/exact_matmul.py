"""Operands whose matmul fp32 computes exactly in any order, and the matmul in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


def integers(*shape: int, seed: int, dtype: Any = ml_dtypes.bfloat16) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def exact(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))
