"""Tiles of plain contiguous memory, which need no tensor map."""

from __future__ import annotations

import math

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.access import bulk_violations
from tmaasync.errors import Violation
from tmaasync.tile.cut import BOX_START_ALIGNMENT, is_positive_integer, raise_if

__all__ = ["BulkTile"]

_BULK_GRANULE_BYTES = 16


class BulkTile:
    """A tile of contiguous memory for 1-D bulk copies: no tensor map, any length.

    Pass it to a kernel for a parameter of the type `cuda_type`.

    Args:
        array: A contiguous array of any rank that starts at a multiple of 16 bytes.
        tile_bytes: Bytes of one tile, a multiple of 16.

    Attributes:
        size_bytes: What the tiles cover: the array's bytes, rounded down to a multiple of 16.

    Raises:
        ArgumentError: The array is not contiguous, or an address or size is no multiple of 16.
    """

    __slots__ = ("_view", "descriptor", "size_bytes", "tile_bytes")

    def __init__(self, array: object, tile_bytes: int) -> None:
        """Check the array; nothing is encoded."""
        view = _arrays.view(array)
        raise_if(_bulk_violations(view, tile_bytes))
        whole = math.prod(view.shape) * view.element.itemsize
        self._view = view
        self.tile_bytes = tile_bytes
        self.size_bytes = whole - whole % _BULK_GRANULE_BYTES
        self.descriptor = view.address.to_bytes(8, "little") + self.size_bytes.to_bytes(8, "little")

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

    @property
    def array(self) -> object:
        """The array behind the tile."""
        return self._view.owner

    @property
    def byte_bounds(self) -> tuple[int, int]:
        """The lowest address of the array, and the one after its highest."""
        return self._view.byte_bounds

    @property
    def device(self) -> int | None:
        """Ordinal of the CUDA device the array is on; None for host memory."""
        return self._view.device

    @property
    def framework(self) -> str:
        """Whose array it is: numpy, cupy, torch, jax or other."""
        return self._view.framework

    @property
    def is_current(self) -> bool:
        """Whether the array is still where it was."""
        return _arrays.current_address(self._view) == self._view.address

    def check_alive(self, argument: str = "tile") -> None:
        """Check that the array is still where it was.

        Raises:
            StaleTileError: It was freed, resized or moved since the tile was made.
        """
        _arrays.require_current(self._view, argument)


def _bulk_violations(view: ArrayView, tile_bytes: int) -> list[Violation]:
    found = list(bulk_violations(view))
    if not is_positive_integer(tile_bytes) or tile_bytes % _BULK_GRANULE_BYTES:
        found.append(
            Violation(
                "tile_bytes",
                repr(tile_bytes),
                "it must be a positive multiple of 16",
                "Pass 16384 or 32768",
            )
        )
    return found
