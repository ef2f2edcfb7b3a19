"""Operands of block-scaled GEMMs, with values that are decoded here, and a check of their sums."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
FP4: Any = {"a_dtype": "float4_e2m1fn", "b_dtype": "float4_e2m1fn"}
BLOCKS = {"MXFP8": 32, "MXFP4": 32, "NVFP4": 16}
FACTORS = {"MXFP8": 4, "MXFP4": 8, "NVFP4": 16}  # of a row in a stage
SEEDS = [(kind, seed) for kind in BLOCKS for seed in range(4 if kind == "MXFP8" else 2)]
"""Of float8 a seed for each pair of types; float4 has one type."""
_TILES = [(ctas, block_n) for ctas in (1, 2) for block_n in (64, 128, 192, 256)]
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-20}


def tile_configs_by_kind(first: int) -> list[tuple[str, int, int]]:
    """Return every tile config on tensor memory with one kind of blocks, which go round."""
    kinds = itertools.islice(itertools.cycle(BLOCKS), first, None)
    return [(kind, *tile) for kind, tile in zip(kinds, _TILES, strict=False)]


def minifloat(codes: Bytes, exponent_bits: int, fraction_bits: int) -> npt.NDArray[np.float64]:
    """Decode a sign, an exponent and a fraction; no code is infinite or NaN."""
    exponent = codes >> fraction_bits & (1 << exponent_bits) - 1
    fraction = (codes & (1 << fraction_bits) - 1) / 2.0**fraction_bits
    bias = (1 << exponent_bits - 1) - 1
    size = np.where(exponent == 0, 2 * fraction, 1 + fraction)
    size *= 2.0 ** np.maximum(exponent.astype(int) - bias, -bias) * 1.0
    sign = codes >> exponent_bits + fraction_bits & 1
    return np.asarray(np.where(sign == 1, -size, size))


def packed(codes: Bytes) -> Bytes:
    """Return two codes in a byte, the first in the low bits."""
    return np.asarray(codes[:, ::2] | codes[:, 1::2] << 4, np.uint8)


def atoms(factors: Bytes) -> Bytes:
    """Return factors [rows, K / block] in atoms of 128 x 4, as cuBLAS's documentation has it."""
    rows, columns = factors.shape
    wide = -(-columns // 4)
    out = np.full(-(-rows // 128) * wide * 512, 0x55, np.uint8)  # the padding is not NaN
    for row in range(rows):
        for k in range(columns):
            atom = row // 128 * wide + k // 4
            out[atom * 512 + row % 32 * 16 + row % 128 // 32 * 4 + k % 4] = factors[row, k]
    return out


class Side(NamedTuple):
    """One operand: its rows, its factors' codes [rows, K / block], and its decoded values."""

    rows: Any
    factors: Bytes
    factor_type: Any
    values: npt.NDArray[np.float64]

    @classmethod
    def drawn(cls, kind: str, rows: int, k: int, rng: np.random.Generator, dtype: Any) -> Side:
        blocks = (rows, k // BLOCKS[kind])
        if kind == "NVFP4":
            factors = rng.integers(0, 0x7F, blocks, np.uint8)
            scales, factor_type = minifloat(factors, 4, 3), E4M3
        else:
            factors = rng.integers(117, 138, blocks, np.uint8)
            scales, factor_type = 2.0 ** (factors.astype(int) - 127), E8M0
        if kind == "MXFP8":
            exponent_bits, fraction_bits = (4, 3) if dtype is E4M3 else (5, 2)
            greatest = 0x7E if dtype is E4M3 else 0x6C
            codes = rng.integers(0, greatest, (rows, k), np.uint8)
            codes |= rng.integers(0, 2, (rows, k), np.uint8) << 7
            values, stored = minifloat(codes, exponent_bits, fraction_bits), codes.view(dtype)
        else:
            codes = rng.integers(0, 16, (rows, k), np.uint8)
            values, stored = minifloat(codes, 2, 1), packed(codes)
        return cls(stored, factors, factor_type, values * np.repeat(scales, BLOCKS[kind], 1))

    def scales(self, layout: str, *, transposed: bool = False) -> Any:
        if layout == "swizzled":
            return atoms(self.factors).view(self.factor_type)
        typed = self.factors.view(self.factor_type)
        return typed.T if transposed else typed


def check(c: Any, a: Side, b: Side, factor: float = 1.0) -> None:
    """Compare with the exact sums, to rounding and what the tensor cores cut off each term."""
    expected = factor * (a.values @ b.values.T)
    sizes = abs(factor) * (np.abs(a.values) @ np.abs(b.values).T)
    bound = ROUNDING[c.dtype.name] * np.abs(expected) + 2.0**-19 * sizes
    assert (np.abs(c.astype(np.float64) - expected) <= bound).all()
