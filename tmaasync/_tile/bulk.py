"""Tiles of contiguous memory for 1-D bulk copies, without a tensor map."""

from __future__ import annotations

import math

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._hardware import BOX_START_ALIGNMENT, TMA_ALIGNMENT
from tmaasync._tile.argument import KernelArgument
from tmaasync._tile.cut import is_positive_integer
from tmaasync.access import bulk_violations
from tmaasync.errors import TensorMapError, Violation


class BulkTile(KernelArgument):
    """A tile of contiguous memory for 1-D bulk copies, of any length, without a tensor map.

    Pass it to a kernel for a parameter of the type `cuda_type`.

    Args:
        array: A contiguous array of any rank that starts at a multiple of 16 bytes.
        tile_bytes: Bytes of one tile, a multiple of 16.
        allow_tail: Whether the tiles may leave out the array's last bytes, fewer than 16, which the
            kernel then copies without TMA.

    Attributes:
        size_bytes: Bytes that the tiles cover: the array's, rounded down to a multiple of 16.

    Raises:
        TensorMapError: The array is not contiguous, or an address or size is no multiple of 16.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    Source: PTX ISA, ``cp.async.bulk``.
    """

    __slots__ = ("_view", "allow_tail", "descriptor", "size_bytes", "tile_bytes")

    _view: ArrayView

    def __init__(self, array: object, tile_bytes: int, *, allow_tail: bool = False) -> None:
        """Check the array and the size."""
        view = _arrays.view(array)
        whole = math.prod(view.shape) * view.element.itemsize
        found = _bulk_violations(view, tile_bytes)
        if whole % TMA_ALIGNMENT and not allow_tail:
            found.append(_tail_violation(whole))
        TensorMapError.raise_for(found)
        self._view = view
        self.tile_bytes = tile_bytes
        self.allow_tail = allow_tail
        self.size_bytes = whole - whole % TMA_ALIGNMENT
        self.descriptor = view.address.to_bytes(8, "little") + self.size_bytes.to_bytes(8, "little")

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._view.shape))
        return (
            f"<BulkTile {self.tile_bytes} bytes of {self._view.element} [{shape}] at "
            f"{self._view.address:#x}, {self.size_bytes} bytes>"
        )

    @property
    def smem_alignment(self) -> int:
        """Alignment in bytes that the tile needs in shared memory."""
        return BOX_START_ALIGNMENT

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: address and size."""
        return self.descriptor

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++."""
        return f"tmaasync::BulkTile<unsigned char, {self.tile_bytes}>"


def _bulk_violations(view: ArrayView, tile_bytes: int) -> list[Violation]:
    found = list(bulk_violations(view))
    if not is_positive_integer(tile_bytes) or tile_bytes % TMA_ALIGNMENT:
        found.append(
            Violation(
                "tile_bytes",
                repr(tile_bytes),
                f"it must be a positive multiple of {TMA_ALIGNMENT}",
                "Pass 16384 or 32768",
            )
        )
    return found


def _tail_violation(size_bytes: int) -> Violation:
    tail = size_bytes % TMA_ALIGNMENT
    return Violation(
        "array",
        f"{size_bytes} bytes",
        f"TMA copies multiples of {TMA_ALIGNMENT} bytes, and would leave out the last {tail}",
        f"Pad the array by {TMA_ALIGNMENT - tail} bytes, or pass allow_tail=True and copy the last "
        f"{tail} in the kernel",
    )
