"""The 64 bits by which ``wgmma`` reads an operand. Source: PTX ISA, "matrix descriptor"."""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync._hardware import MATRIX_DESCRIPTOR_UNIT
from tmaasync._kinds import check_integers
from tmaasync.errors import ArgumentError
from tmaasync.modes import Swizzle, SwizzleMode, SwizzleName

_ADDRESS_BITS = 14


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
    swizzle: Swizzle | SwizzleName

    def encode(self) -> int:
        """Return the descriptor as an integer.

        Raises:
            ArgumentError: A field is no multiple of 16 or too large, or sm_90 lacks the swizzle.
        """
        swizzle = Swizzle.of(self.swizzle, "swizzle")
        if swizzle.needs_sm_100:
            raise ArgumentError.broken(
                "swizzle", swizzle, "it exists on sm_100 and later", "Use Swizzle.B128"
            )
        return self.encode_offsets() | SwizzleMode.from_swizzle(swizzle) << 62

    def encode_offsets(self) -> int:
        """Return bits 0 to 45, which ``wgmma`` and ``tcgen05`` share: address and distances.

        Raises:
            ArgumentError: A field is no multiple of 16 or too large.
        """
        address = _sixteenths("address", self.address)
        leading = _sixteenths("leading_bytes", self.leading_bytes)
        stride = _sixteenths("stride_bytes", self.stride_bytes)
        return address | leading << 16 | stride << 32


def increase_descriptor_offset(descriptor: int, offset_bytes: int) -> int:
    """Return the descriptor of the same operand, this many bytes further on in shared memory.

    Raises:
        ArgumentError: The offset is no multiple of 16, or the address leaves its 14 bits.

    >>> hex(increase_descriptor_offset(0x4000004000010100, 32))
    '0x4000004000010102'
    """
    check_integers(descriptor=descriptor, offset_bytes=offset_bytes)
    moved = (descriptor & 0x3FFF) * MATRIX_DESCRIPTOR_UNIT + offset_bytes
    return descriptor & ~0x3FFF | _sixteenths("address + offset_bytes", moved)


def _sixteenths(argument: str, value: int) -> int:
    limit = MATRIX_DESCRIPTOR_UNIT << _ADDRESS_BITS
    check_integers(**{argument: value})
    if value % MATRIX_DESCRIPTOR_UNIT or not 0 <= value < limit:
        raise ArgumentError.broken(
            argument,
            value,
            f"it must be a multiple of 16 in [0, {limit})",
            "Align the tile to 16 bytes and pass distances in bytes",
        )
    return int(value) >> 4
