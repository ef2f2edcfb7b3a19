"""The rules of ``wgmma``: which multiplications exist, and how they find operands in shared memory.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". The device header
``ptx/wgmma_mma.cuh`` is written from these rules by ``tools/generate_wgmma_mma.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync.errors import ArgumentError
from tmaasync.modes import Swizzle

__all__ = ["LEGAL_N", "MMA_FORMS", "MatrixDescriptor", "MmaForm"]

LEGAL_N = tuple(range(8, 257, 8))
"""Columns of the accumulator that one instruction may have, for 16-bit operands."""

_ADDRESS_BITS = 14
_LAYOUT = {Swizzle.NONE: 0, Swizzle.B128: 1, Swizzle.B64: 2, Swizzle.B32: 3}


@dataclass(frozen=True, slots=True)
class MmaForm:
    """One operand type of ``wgmma.mma_async``: 64 rows, ``k`` deep, fp32 accumulators."""

    operand: str
    k: int

    @property
    def ptx_types(self) -> str:
        """The type suffix of the instruction."""
        return f"f32.{self.operand}.{self.operand}"


MMA_FORMS = (MmaForm("bf16", 16), MmaForm("f16", 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixDescriptor:
    """The 64 bits by which ``wgmma`` reads an operand tile (PTX ISA, "matrix descriptor").

    Args:
        address: Shared-memory address of the tile in bytes, a multiple of 16, below 256 KiB.
        leading_bytes: Distance between repeats of the swizzle atom along the leading dimension.
        stride_bytes: Distance between groups of eight rows.
        swizzle: The swizzle the tile was loaded with. The instruction numbers it differently from
            the tensor map; `encode` translates.
    """

    address: int
    leading_bytes: int
    stride_bytes: int
    swizzle: Swizzle

    def encode(self) -> int:
        """The descriptor as an integer.

        Raises:
            ArgumentError: A field is no multiple of 16 or too large, or sm_90 lacks the swizzle.
        """
        if self.swizzle not in _LAYOUT:
            raise ArgumentError(
                f"swizzle is {self.swizzle}; it exists on sm_100 and later. Use Swizzle.B128."
            )
        address = _sixteenths("address", self.address)
        leading = _sixteenths("leading_bytes", self.leading_bytes)
        stride = _sixteenths("stride_bytes", self.stride_bytes)
        return address | leading << 16 | stride << 32 | _LAYOUT[self.swizzle] << 62


def _sixteenths(argument: str, value: int) -> int:
    limit = 16 << _ADDRESS_BITS
    if value % 16 or not 0 <= value < limit:
        raise ArgumentError(
            f"{argument} is {value}; it must be a multiple of 16 in [0, {limit}). "
            "Align the tile to 16 bytes and pass distances in bytes."
        )
    return value >> 4
