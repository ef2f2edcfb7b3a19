"""Arrays of tiles of one type, which kernels index or edit."""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Iterator, Sequence

from tmaasync._driver import DeviceMemory, HostMemory, placed
from tmaasync._kinds import shown
from tmaasync._tile.argument import KernelArgument, MapTile
from tmaasync.errors import ArgumentError, Violation

_STRUCT = struct.Struct("<QQ")


class TMATensorTileArray(KernelArgument):
    """Tiles of one type in an array that kernels index and may edit.

    The array owns its memory, on the device of the tiles' arrays, or on the host for the emulator.
    Pass it to a kernel for a parameter of the type `cuda_type`. There ``tiles[i]`` is a tile ready
    for use and ``tiles.at(i)`` one to edit; an index after the last traps. A kernel that edits a
    tile per block needs one for each: ``TMATensorTileArray([tile] * blocks)``.

    Tiles of arrays on several devices, one after the other, are indexed by rank. Every device that
    launches with them has a copy of the maps, and access to its peers (`enable_peer_access`).

    Args:
        tiles: One or more tiles of the same `cuda_type`, all in host memory or all on devices.

    Raises:
        ArgumentError: There are no tiles, they differ in type, or host memory and devices mix.

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
        self._copies = {device: self._copied(device) for device in self.devices}

    def _copied(self, device: int | None) -> HostMemory | DeviceMemory:
        return placed(device, b"".join(tile.argument for tile in self._tiles))

    def __repr__(self) -> str:
        address = self._copies[self.device].address
        return f"<TMATensorTileArray of {len(self)} at {address:#x}, {self._tiles[0]}>"

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
        self._tiles[position] = tile
        for copy in self._copies.values():
            copy.write(position * len(tile.argument), tile.argument)

    @property
    def descriptors(self) -> tuple[bytes, ...]:
        """The current 128 bytes of every map, with the edits of kernels on the first tile's device.

        On a device this waits for the default stream; wait for other streams first.
        """
        pitch = len(self._tiles[0].argument)
        data = self._copies[self.device].read()
        return tuple(data[start : start + 128] for start in range(0, len(data), pitch))

    @property
    def array_view(self) -> None:
        """None: the argument is an array of tensor maps, each over an array of its own."""

    @property
    def byte_bounds(self) -> tuple[int, int]:
        """The address of the first map, and the one after the last."""
        start = self._copies[self.device].address
        return start, start + len(self) * len(self._tiles[0].argument)

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter on the first tile's device: address and count."""
        return self.argument_on(self.device)

    def argument_on(self, device: int | None) -> bytes:
        """Return the bytes of the kernel parameter for a launch on this device."""
        if device not in self._copies:
            self._copies[device] = self._copied(device)
        return _STRUCT.pack(self._copies[device].address, len(self))

    def members(self) -> Iterable[MapTile]:
        """Return the tiles, whose arrays a kernel reaches by their maps."""
        return self._tiles

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
        """Ordinal of the CUDA device the first tile is on; None for host memory."""
        return self._tiles[0].device

    @property
    def devices(self) -> tuple[int | None, ...]:
        """The tiles' devices, each once, in the order of the tiles."""
        return tuple(dict.fromkeys(tile.device for tile in self._tiles))

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
        return [Violation("tiles", shown(tiles), rule, "Pass a list, such as [tile]")]
    if not tiles:
        return [Violation("tiles", "empty", "an array has one tile or more", "Skip the launch")]
    strangers = [
        Violation(
            f"tiles[{index}]",
            shown(tile),
            "it is no tile with a tensor map",
            "Pass what create_tma_tile, or a template's bind, returned",
        )
        for index, tile in enumerate(tiles)
        if not isinstance(tile, MapTile)
    ]
    return strangers or list(_mixed([tile for tile in tiles if isinstance(tile, MapTile)]))


def _mixed(tiles: list[MapTile]) -> Iterator[Violation]:
    first = tiles[0]
    for index, tile in enumerate(tiles):
        if tile.cuda_type != first.cuda_type:
            yield Violation(
                f"tiles[{index}].cuda_type",
                tile.cuda_type,
                f"tiles[0] has {first.cuda_type}, and all are of one type",
                "Make the tiles with the same shape, box, swizzle and element type",
            )
        if (tile.device is None) != (first.device is None):
            yield Violation(
                f"tiles[{index}].device",
                tile.device,
                f"tiles[0] has {first.device}; None is host memory, which no kernel on a device "
                "reads by TMA",
                "Move all arrays to devices, or all to the host",
            )
