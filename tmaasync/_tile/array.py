"""Arrays of tiles of one type, which kernels index or edit."""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from tmaasync._memory import placed
from tmaasync._tile.argument import KernelArgument, MapTile
from tmaasync.errors import ArgumentError, Violation

__all__ = ["TMATensorTileArray"]

_STRUCT = struct.Struct("<QQ")


class TMATensorTileArray(KernelArgument):
    """Tiles of one type in an array that kernels index and may edit.

    The array owns its memory, on the device of the tiles' arrays, or on the host for the emulator.
    Pass it to a kernel for a parameter of the type `cuda_type`. There ``tiles[i]`` is a tile ready
    for use and ``tiles.at(i)`` one to edit; an index after the last traps. A kernel that edits a
    tile per block needs one for each: ``TMATensorTileArray([tile] * blocks)``.

    Args:
        tiles: One or more tiles of the same `cuda_type`, on one device.

    Raises:
        ArgumentError: There are no tiles, or they differ in type or device.

    >>> import numpy as np
    >>> from tmaasync import create_tma_tile
    >>> arrays = [np.zeros((rows, 64), np.float32) for rows in (100, 7, 64)]
    >>> tiles = TMATensorTileArray([create_tma_tile(array, (32, 32)) for array in arrays])
    >>> len(tiles), tiles[1].spec.shape
    (3, (7, 64))
    """

    _kind = "tiles"

    def __init__(self, tiles: Sequence[MapTile]) -> None:
        """Lay the tiles out in memory."""
        ArgumentError.raise_for(_violations(tiles))
        self._tiles: list[MapTile] = list(tiles)
        self._memory = placed(tiles[0].device, b"".join(tile.argument for tile in tiles))

    def __repr__(self) -> str:
        return f"<TMATensorTileArray of {len(self)} at {self._memory.address:#x}, {self._tiles[0]}>"

    def __len__(self) -> int:
        return len(self._tiles)

    def __iter__(self) -> Iterator[MapTile]:
        """Yield the tiles, as the host wrote them."""
        return iter(self._tiles)

    def __getitem__(self, index: int) -> MapTile:
        """Return the tile as the host wrote it; edits by kernels are in `descriptors`."""
        return self._tiles[self._position(index)]

    def __setitem__(self, index: int, tile: MapTile) -> None:
        """Replace a tile by one of the same type; no kernel that uses the array may be running."""
        position = self._position(index)
        ArgumentError.raise_for(_violations([self._tiles[0], tile]))
        self._memory.write(position * len(tile.argument), tile.argument)
        self._tiles[position] = tile

    @property
    def descriptors(self) -> tuple[bytes, ...]:
        """The current 128 bytes of every map, with the edits of kernels.

        On a device this waits for the default stream; wait for other streams first.
        """
        pitch = len(self._tiles[0].argument)
        data = self._memory.read()
        return tuple(data[start : start + 128] for start in range(0, len(data), pitch))

    @property
    def array_view(self) -> None:
        """None: the argument is an array of tensor maps, each over an array of its own."""

    @property
    def byte_bounds(self) -> tuple[int, int]:
        """The address of the first map, and the one after the last."""
        start = self._memory.address
        return start, start + len(self) * len(self._tiles[0].argument)

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: address and count."""
        return _STRUCT.pack(self._memory.address, len(self))

    @property
    def cuda_type(self) -> str:
        """The array's type in CUDA C++."""
        return f"tmaasync::TMATensorTileArray<{self._tiles[0].cuda_type}>"

    @property
    def array(self) -> object:
        """The first tile's array."""
        return self._tiles[0].array

    @property
    def device(self) -> int | None:
        """Ordinal of the CUDA device the tiles are on; None for host memory."""
        return self._tiles[0].device

    @property
    def framework(self) -> str:
        """Library of the first tile's array: numpy, cupy, torch, jax or other."""
        return self._tiles[0].framework

    @property
    def is_current(self) -> bool:
        """True if every array is still at its map's address."""
        return all(tile.is_current for tile in self._tiles)

    def _address_reader(self) -> None:
        """Return None: each of the tiles has to be looked at."""

    def check_alive(self, argument: str | None = None) -> None:
        """Check that every array is still at its map's address.

        Raises:
            StaleTileError: One was freed, resized or moved since its tile was made.
        """
        for index, tile in enumerate(self._tiles):
            tile.check_alive(f"{argument or self._kind}[{index}]")

    def _position(self, index: int) -> int:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(
                f"index is {position}; the array has {len(self)} tiles. Pass 0 to {len(self) - 1}."
            )
        return position % len(self)


def _violations(tiles: Sequence[object]) -> list[Violation]:
    if not isinstance(tiles, Sequence):
        rule = "it must be a sequence of tiles"
        return [Violation("tiles", repr(tiles), rule, "Pass a list, such as [tile]")]
    if not tiles:
        return [Violation("tiles", "empty", "an array has one tile or more", "Skip the launch")]
    strangers = [
        Violation(
            f"tiles[{index}]",
            repr(tile),
            "it is no tile with a tensor map",
            "Pass what create_tma_tile, or a template's bind, returned",
        )
        for index, tile in enumerate(tiles)
        if not isinstance(tile, MapTile)
    ]
    if strangers:
        return strangers
    first: Any = tiles[0]
    return [
        Violation(
            f"tiles[{index}].{name}",
            getattr(tile, name),
            f"tiles[0] has {getattr(first, name)}, and all are of one type on one device",
            "Make the tiles with the same shape, box, swizzle and element type",
        )
        for index, tile in enumerate(tiles)
        for name in ("cuda_type", "device")
        if getattr(tile, name) != getattr(first, name)
    ]
