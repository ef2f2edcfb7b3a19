"""The map of a pipeline's shared memory: where each tile's buffers and the barriers lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync.errors import Violation

__all__ = [
    "BufferArray",
    "SharedBuffer",
    "StagedTile",
    "buffers",
    "lay_out",
    "most_stages",
    "shared_alignment",
    "shared_bytes",
    "tile_violations",
]

_BARRIER_BYTES = 8
_BARRIERS = ("full_barriers", "empty_barriers")
_EXTRA = "extra"


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
    """Buffers of one kind, one after the other."""

    name: str
    slots: int
    offset_bytes: int
    size_bytes: int
    alignment: int

    @property
    def stride_bytes(self) -> int:
        return _aligned(self.size_bytes, self.alignment)

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + (self.slots - 1) * self.stride_bytes + self.size_bytes


def _aligned(offset_bytes: int, alignment: int) -> int:
    return -(-offset_bytes // alignment) * alignment


def shared_alignment(tiles: Mapping[str, StagedTile]) -> int:
    return max(_BARRIER_BYTES, *(tile.smem_alignment for tile in tiles.values()))


def lay_out(
    stages: int, tiles: Mapping[str, StagedTile], extra_bytes: int
) -> Iterator[BufferArray]:
    """Yield the arrays by offset, the most aligned tiles first, so that little is lost between."""
    kinds = [
        (name, stages, tile.tile_bytes, tile.smem_alignment)
        for name, tile in sorted(tiles.items(), key=lambda item: -item[1].smem_alignment)
    ]
    if extra_bytes:
        kinds.append((_EXTRA, 1, extra_bytes, shared_alignment(tiles)))
    kinds += [(name, stages, _BARRIER_BYTES, _BARRIER_BYTES) for name in _BARRIERS]
    end_bytes = 0
    for name, slots, size_bytes, alignment in kinds:
        array = BufferArray(
            name=name,
            slots=slots,
            offset_bytes=_aligned(end_bytes, alignment),
            size_bytes=size_bytes,
            alignment=alignment,
        )
        end_bytes = array.end_bytes
        yield array


def buffers(array: BufferArray) -> Iterator[SharedBuffer]:
    for slot in range(array.slots):
        yield SharedBuffer(
            name=array.name,
            stage=None if array.name == _EXTRA else slot,
            offset_bytes=array.offset_bytes + slot * array.stride_bytes,
            size_bytes=array.size_bytes,
            alignment=array.alignment,
        )


def shared_bytes(stages: int, tiles: Mapping[str, StagedTile], extra_bytes: int) -> int:
    return max(array.end_bytes for array in lay_out(stages, tiles, extra_bytes))


def most_stages(tiles: Mapping[str, StagedTile], extra_bytes: int) -> int:
    """Return the most stages that fit, or 0."""
    per_stage = sum(array.stride_bytes for array in lay_out(1, tiles, 0))
    # + 1: the last buffer of each kind needs no padding after it.
    stages = max(MAX_SHARED_BYTES - extra_bytes, 0) // per_stage + 1
    while stages and shared_bytes(stages, tiles, extra_bytes) > MAX_SHARED_BYTES:
        stages -= 1
    return stages


def tile_violations(tiles: Mapping[str, StagedTile]) -> Iterator[Violation]:
    """Yield the broken rules of the tiles of a stage and their names."""
    if not tiles:
        yield Violation("tiles", "{}", "a stage holds at least one tile", 'Pass {"a": tile}')
    yield from _name_violations(tiles)
    for name, tile in tiles.items():
        yield from _size_violations(name, tile)


def _name_violations(tiles: Mapping[str, StagedTile]) -> Iterator[Violation]:
    taken = {name.upper() for name in (_EXTRA, *_BARRIERS)}
    for name in tiles:
        if not (name.isascii() and name.isidentifier()) or name.upper() in taken:
            yield Violation(
                "tiles",
                repr(name),
                "it names constants of the kernel, so it must be an identifier that no other "
                f"tile has in either case, and not {_EXTRA}, {' or '.join(_BARRIERS)}",
                "Choose another name",
            )
        taken.add(name.upper())


def _size_violations(name: str, tile: StagedTile) -> Iterator[Violation]:
    argument = f"tiles[{name!r}]"
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
