"""Accumulation of float8 as an H200's tensor cores do it, in float64 and NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_PRODUCTS = 32  # of an instruction
_BITS = 13  # below the leading bit of the largest


def truncated_matmul(a: Array, b: Array) -> Array:
    """[M, N] of a [M, K] and b [N, K].

    An instruction's partial products, and the accumulator, are truncated towards zero at 2^-13 of
    the power of two of the largest of them.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    sums = np.zeros((len(a), len(b)))
    for first in range(0, a.shape[1], _PRODUCTS):
        ks = slice(first, first + _PRODUCTS)
        addends = np.concatenate([sums[..., None], a[:, None, ks] * b[None, :, ks]], axis=2)
        _, exponents = np.frexp(abs(addends).max(2, keepdims=True))
        units = 2.0 ** (exponents - 1 - _BITS)
        sums = (np.trunc(addends / units) * units).sum(2)
    return sums
