"""Common part of all ragged maps: a tile, and a window of rows below the array."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tmaasync._arrays import ArrayView
from tmaasync._driver import blank_address
from tmaasync._elements import Element
from tmaasync._tile.argument import MapArgument
from tmaasync.errors import TensorMapError
from tmaasync.tensormap import TENSOR_MAP_BYTES, TensorMapSpec

if TYPE_CHECKING:
    from tmaasync.tile import TMATensorTile

_OUTLYING_BYTES = 384  # two maps and their extents, filled up to a multiple of 128
_ARGUMENT_BYTES = 512
_NUMBERS = struct.Struct("<2I")


class RaggedMap(MapArgument):
    """A tensor map whose address lies ``max_length`` rows below its array."""

    __slots__ = ("_tile", "_type", "_view", "max_length")

    _kind = "map"
    _view: ArrayView

    def __init__(self, view: ArrayView, tile: TMATensorTile, max_length: int) -> None:
        self._view = view
        self._tile = tile
        self.max_length = max_length
        self._type: str | None = None

    def _numbers(self) -> tuple[int, ...]:
        """Return the 32-bit numbers of the device struct after the extents of the map."""
        return (self.max_length,)

    def _cuda_type(self, template: str, last: int) -> str:
        """Return a struct of ragged.cuh; its shapes leave out the tile's first side, 1.

        Every launch asks, so the text is made once.
        """
        if self._type is None:
            self._type = self._new_cuda_type(template, last)
        return self._type

    def _new_cuda_type(self, template: str, last: int) -> str:
        shapes = [
            f"tmaasync::{kind}<{', '.join(map(str, sides[1:]))}>"
            for kind, sides in (("Shape", self._tile.tile_shape), ("Box", self._tile.box_shape))
        ]
        swizzle = self._tile.cuda_type.rpartition(", ")[2].removesuffix(">")
        arguments = [self.element.cuda_type, *shapes, swizzle, str(last)]
        return f"tmaasync::{template}<{', '.join(arguments)}>"

    @property
    def spec(self) -> TensorMapSpec:
        """The fields of the tensor map."""
        return self._tile.spec

    @property
    def descriptor(self) -> bytes:
        """The 128 bytes of the ``CUtensorMap``."""
        return self._tile.descriptor

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter.

        The map; the same with an address where there always is memory, for loads without an element
        in bounds (the chip touches the map's address even then); the map's extents, innermost
        first; and ``max_length``.
        """
        blank = blank_address(self.device).to_bytes(8, "little") + self.descriptor[8:]
        outlying = self.descriptor + blank + _packed(reversed(self.spec.shape))
        numbers = _packed(self._numbers())
        return (outlying.ljust(_OUTLYING_BYTES, b"\0") + numbers).ljust(_ARGUMENT_BYTES, b"\0")

    @property
    def element(self) -> Element:
        """The element type, as NumPy, the tensor map and the kernel name it."""
        return self._tile.element

    @property
    def boxes_per_tile(self) -> int:
        """Instructions that one call issues."""
        return self._tile.boxes_per_tile

    @property
    def tile_bytes(self) -> int:
        """Bytes that a barrier must expect for a load, rows beyond the end included."""
        return self._tile.tile_bytes

    @property
    def smem_alignment(self) -> int:
        """Alignment in bytes that the tile needs in shared memory."""
        return self._tile.smem_alignment


def _packed(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def array_address(argument: bytes) -> int | None:
    """Return the array's address from a ragged map's kernel parameter; None of any other bytes."""
    first, second = argument[:TENSOR_MAP_BYTES], argument[TENSOR_MAP_BYTES : 2 * TENSOR_MAP_BYTES]
    if len(argument) != _ARGUMENT_BYTES or first[8:] != second[8:]:
        return None
    try:
        spec = TensorMapSpec.decode(first)
    except TensorMapError:
        return None
    max_length, heads = _NUMBERS.unpack_from(argument, _OUTLYING_BYTES)
    # The cursor counts rows, or, where heads are merged with them, heads of rows.
    below_bytes: int = max_length * spec.strides_bytes[0] * max(heads, 1)
    return spec.address + below_bytes
