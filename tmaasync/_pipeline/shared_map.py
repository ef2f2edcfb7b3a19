"""The members of a ring in shared memory: its tiles, its barriers and what lies next to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tmaasync._kinds import shown
from tmaasync.errors import Violation

_BARRIER_BYTES = 8
_FULL, _EMPTY, _EXTRA = "full_barriers", "empty_barriers", "extra"
_EMPTY_STRUCT_BYTES = 1  # what C++ gives NoSide


@runtime_checkable
class StagedTile(Protocol):
    """The part of a tile that a pipeline needs; ``TMATensorTile`` has both."""

    @property
    def tile_bytes(self) -> int:
        """Bytes that one load of the tile brings, those out of bounds included."""

    @property
    def smem_alignment(self) -> int:
        """Bytes to which the tile is aligned in shared memory: 128, or more under a swizzle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBuffer:
    """One buffer of the shared-memory map; ``stage`` is ``None`` outside the stages."""

    name: str
    stage: int | None
    offset_bytes: int
    size_bytes: int
    alignment: int

    @property
    def end_bytes(self) -> int:
        """The offset of the first byte after the buffer."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferArray:
    """Buffers of one kind, one for every stage; ``extra`` has one in all."""

    name: str
    slots: int
    offset_bytes: int
    size_bytes: int
    stride_bytes: int
    alignment: int

    def buffers(self) -> Iterator[SharedBuffer]:
        for slot in range(self.slots):
            yield SharedBuffer(
                name=self.name,
                stage=None if self.name == _EXTRA else slot,
                offset_bytes=self.offset_bytes + slot * self.stride_bytes,
                size_bytes=self.size_bytes,
                alignment=self.alignment,
            )


def _aligned(offset_bytes: int, alignment: int) -> int:
    return -(-offset_bytes // alignment) * alignment


class _Struct:
    """A C++ struct that grows: every member starts at a multiple of its alignment."""

    def __init__(self, tiles: Mapping[str, StagedTile] | None = None) -> None:
        self._end_bytes, self.alignment = 0, 1
        self.offsets = {name: self.add_tile(tile) for name, tile in (tiles or {}).items()}

    @property
    def size_bytes(self) -> int:
        return _aligned(self._end_bytes, self.alignment)

    def add(self, size_bytes: int, alignment: int) -> int:
        offset_bytes = _aligned(self._end_bytes, alignment)
        self._end_bytes = offset_bytes + size_bytes
        self.alignment = max(self.alignment, alignment)
        return offset_bytes

    def add_tile(self, tile: StagedTile) -> int:
        return self.add(_aligned(tile.tile_bytes, tile.smem_alignment), tile.smem_alignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLayout:
    """The members of ``Ring`` or ``StoreRing`` of the device headers, then ``extra_bytes``."""

    tiles: Mapping[str, StagedTile]
    side: Mapping[str, StagedTile]
    extra_bytes: int
    is_stored: bool
    limit_bytes: int

    @property
    def alignment(self) -> int:
        tiles = (*self.tiles.values(), *self.side.values())
        return max(_BARRIER_BYTES, *(tile.smem_alignment for tile in tiles))

    def arrays(self, stages: int) -> Iterator[BufferArray]:
        ring, arrays = self._ring(stages)
        yield from arrays
        if self.extra_bytes:
            yield BufferArray(
                name=_EXTRA,
                slots=1,
                offset_bytes=ring.size_bytes,
                size_bytes=self.extra_bytes,
                stride_bytes=self.extra_bytes,
                alignment=self.alignment,
            )

    def shared_bytes(self, stages: int) -> int:
        """Return the size of a struct that holds the ring and the extra bytes, in either order."""
        ring, _ = self._ring(stages)
        return ring.size_bytes + _aligned(self.extra_bytes, self.alignment)

    def most_stages(self) -> int:
        """Return the most stages that fit, or 0."""
        # A bound from above: barriers take space too.
        stages = self.limit_bytes // max(_Struct(self.tiles).size_bytes, 1)
        while stages and self.shared_bytes(stages) > self.limit_bytes:
            stages -= 1
        return stages

    def _ring(self, stages: int) -> tuple[_Struct, list[BufferArray]]:
        ring = _Struct()
        arrays = [*_members(ring, stages, self.tiles)]
        arrays += [
            BufferArray(
                name=name,
                slots=stages,
                offset_bytes=ring.add(stages * _BARRIER_BYTES, _BARRIER_BYTES),
                size_bytes=_BARRIER_BYTES,
                stride_bytes=_BARRIER_BYTES,
                alignment=_BARRIER_BYTES,
            )
            for name in ((_FULL,) if self.is_stored else (_FULL, _EMPTY))
        ]
        arrays += _members(ring, stages, self.side)
        if not self.is_stored and not self.side:
            ring.add(stages * _EMPTY_STRUCT_BYTES, 1)
        return ring, arrays


def _members(ring: _Struct, stages: int, tiles: Mapping[str, StagedTile]) -> Iterator[BufferArray]:
    member = _Struct(tiles)
    offset_bytes = ring.add(stages * member.size_bytes, member.alignment)
    for name, tile in tiles.items():
        yield BufferArray(
            name=name,
            slots=stages,
            offset_bytes=offset_bytes + member.offsets[name],
            size_bytes=tile.tile_bytes,
            stride_bytes=member.size_bytes,
            alignment=tile.smem_alignment,
        )


def tile_violations(
    tiles: Mapping[str, StagedTile], side: Mapping[str, StagedTile]
) -> Iterator[Violation]:
    """Yield the broken rules of the tiles of a stage, of its side data and their names."""
    if not tiles:
        yield Violation("tiles", "{}", "a stage holds at least one tile", 'Pass {"a": tile}')
    taken = {name.upper() for name in (_EXTRA, _FULL, _EMPTY)}
    for argument, members in (("tiles", tiles), ("side", side)):
        yield from _name_violations(argument, members, taken)
        for name, tile in members.items():
            yield from _size_violations(f"{argument}[{name!r}]", tile)


def _name_violations(
    argument: str, tiles: Mapping[Any, StagedTile], taken: set[str]
) -> Iterator[Violation]:
    for name in tiles:
        is_name = isinstance(name, str) and name.isascii() and name.isidentifier()
        if not is_name or name.upper() in taken:
            yield Violation(
                argument,
                shown(name),
                "it names constants of the kernel, so it must be an identifier that no other "
                f"tile has in either case, and not {_EXTRA}, {_FULL} or {_EMPTY}",
                "Choose another name",
            )
        taken.update([name.upper()] if is_name else [])


def _size_violations(argument: str, tile: StagedTile) -> Iterator[Violation]:
    if not isinstance(tile, StagedTile):
        yield Violation(
            argument,
            f"a {type(tile).__name__}",
            "it must have tile_bytes and smem_alignment",
            "Pass what create_tma_tile returned",
        )
        return
    if tile.tile_bytes < 1:
        yield Violation(
            f"{argument}.tile_bytes", tile.tile_bytes, "it must be positive", "Give the tile a side"
        )
    if tile.smem_alignment < 1 or tile.smem_alignment & (tile.smem_alignment - 1):
        yield Violation(
            f"{argument}.smem_alignment",
            tile.smem_alignment,
            "it must be a power of two",
            "Use swizzle.alignment",
        )
