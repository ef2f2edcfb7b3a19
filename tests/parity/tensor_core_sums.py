"""Accumulation as Hopper's tensor cores do it, instruction by instruction, in NumPy alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from tensor_core_model import BF16, E4M3, E5M2, F16, F32, Element, model_of, multiply

Array = np.ndarray[Any, Any]

_DEPTH_BYTES = 32  # of an instruction, along K
_ELEMENTS = {
    np.dtype(np.float16): F16,
    np.dtype(ml_dtypes.bfloat16): BF16,
    np.dtype(ml_dtypes.float8_e4m3fn): E4M3,
    np.dtype(ml_dtypes.float8_e5m2): E5M2,
}


def _bits(values: Array) -> tuple[Array, Element]:
    element = _ELEMENTS[values.dtype]
    return values.view(np.uint8 if element.bytes == 1 else np.uint16)[None], element


def accumulated(a: Array, b: Array) -> Array:
    """Return float32 [M, N] of a [M, K] and b [N, K], which wgmma adds up in the order of K."""
    (a_bits, a_element), (b_bits, b_element) = _bits(a), _bits(b)
    sums: Array = np.zeros((1, len(a), len(b)), np.int64)
    step = _DEPTH_BYTES // a_element.bytes
    for first in range(0, a.shape[1], step):
        ks = slice(first, first + step)
        sums = multiply(
            np,
            a_bits[:, :, ks],
            b_bits[:, :, ks],
            sums,
            (a_element, b_element, F32),
            model_of("wgmma", a_element),
        )
    floats: Array = sums[0].astype(np.uint32).view(np.float32)
    return floats
