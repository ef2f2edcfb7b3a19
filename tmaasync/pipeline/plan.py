"""What a ring takes: bytes per stage, the map of shared memory, the constants of its kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, Self, runtime_checkable

from tmaasync.errors import ArgumentError, Violation
from tmaasync.pipeline.check import check_protocol
from tmaasync.pipeline.protocol import RingProtocol

__all__ = ["Pipeline", "SharedBuffer", "StagedTile"]

_MAX_SHARED_BYTES = 227 * 1024  # what one block of sm_90 can opt in to
_MAX_CLUSTER_SIZE = 16  # 8 are portable, 16 with the kernel's opt-in
_BARRIER_BYTES = 8
_BARRIERS = ("full_barriers", "empty_barriers")
_EXTRA = "extra"


@runtime_checkable
class StagedTile(Protocol):
    """What a pipeline asks of a tile; ``TMATensorTile`` has both."""

    @property
    def tile_bytes(self) -> int:
        """Bytes that one load of the tile brings, those out of bounds included."""

    @property
    def smem_alignment(self) -> int:
        """Bytes to which the tile is aligned in shared memory: 128, or more under a swizzle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBuffer:
    """One buffer of the shared-memory map; ``stage`` is ``None`` outside the ring."""

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
class _Array:
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


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A ring of ``stages``, each with one buffer per tile, a full and an empty barrier.

    ``consumers`` counts the consumers of one CTA; each arrives once on the empty barrier of every
    CTA of the cluster when it is done with a stage. ``extra_bytes`` are set aside outside the ring,
    at the ring's alignment, for the epilogue's tile for example. Offsets count from a base that is
    aligned to ``shared_alignment``: ``extern __shared__ __align__(SHARED_ALIGNMENT)``.

    >>> from types import SimpleNamespace
    >>> tile = SimpleNamespace(tile_bytes=16384, smem_alignment=1024)
    >>> ring = Pipeline.fit(tiles={"a": tile, "b": tile}, consumers=2)
    >>> ring.stages, ring.stage_bytes, ring.shared_bytes
    (7, 32768, 229488)
    >>> ring.check()
    """

    stages: int
    _: KW_ONLY
    tiles: Mapping[str, StagedTile]
    consumers: int = 1
    cluster_size: int = 1
    extra_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse a ring that cannot be, or that does not fit in shared memory."""
        object.__setattr__(self, "tiles", dict(self.tiles))
        if broken := tuple(_violations(self)):
            raise ArgumentError("\n".join(str(violation) for violation in broken))
        if self.shared_bytes > _MAX_SHARED_BYTES:
            raise ArgumentError(str(_too_large(self)))

    @classmethod
    def fit(
        cls,
        *,
        tiles: Mapping[str, StagedTile],
        consumers: int = 1,
        cluster_size: int = 1,
        extra_bytes: int = 0,
        max_stages: int | None = None,
    ) -> Self:
        """Return the pipeline with the most stages that fit in shared memory."""
        # One stage is refused with the same words as any other bad argument.
        smallest = cls(
            1, tiles=tiles, consumers=consumers, cluster_size=cluster_size, extra_bytes=extra_bytes
        )
        stages = _most_stages(smallest.tiles, extra_bytes)
        return cls(
            stages if max_stages is None else min(stages, max_stages),
            tiles=tiles,
            consumers=consumers,
            cluster_size=cluster_size,
            extra_bytes=extra_bytes,
        )

    @property
    def stage_bytes(self) -> int:
        """Bytes that land in one stage: what its full barrier must expect, in every CTA."""
        return sum(tile.tile_bytes for tile in self.tiles.values())

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that empty a stage: those of all consumers of the cluster."""
        return self.consumers * self.cluster_size

    @property
    def shared_alignment(self) -> int:
        """The alignment that the base of the map needs."""
        return _alignment(self.tiles)

    @property
    def shared_map(self) -> tuple[SharedBuffer, ...]:
        """Every buffer, by offset: tiles, extra bytes, full barriers, empty barriers."""
        return tuple(buffer for array in self._arrays() for buffer in _buffers(array))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory to launch with."""
        return _shared_bytes(self.stages, self.tiles, self.extra_bytes)

    def constants(self) -> dict[str, int]:
        """Return the compile-time constants of a kernel with this ring.

        Tile ``a`` gives ``A_OFFSET`` and ``A_STRIDE``; its stage ``s`` lies at
        ``A_OFFSET + s * A_STRIDE``.
        """
        return {
            "STAGES": self.stages,
            "STAGE_BYTES": self.stage_bytes,
            "SHARED_BYTES": self.shared_bytes,
            "SHARED_ALIGNMENT": self.shared_alignment,
            "CONSUMERS": self.consumers,
            "CLUSTER_SIZE": self.cluster_size,
            "FULL_ARRIVALS": 1,
            "EMPTY_ARRIVALS": self.empty_arrivals,
            **{f"{array.name.upper()}_OFFSET": array.offset_bytes for array in self._arrays()},
            **{
                f"{array.name.upper()}_STRIDE": array.stride_bytes
                for array in self._arrays()
                if array.name in self.tiles
            },
        }

    def protocol(self) -> RingProtocol:
        """Return the protocol that a kernel on this ring must follow.

        The rings of a cluster are alike, and each stage is released by the consumers of all CTAs:
        one ring with all those consumers stands for them.
        """
        return RingProtocol.for_ring(
            self.stages,
            consumers=self.empty_arrivals,
            load_bytes=tuple(tile.tile_bytes for tile in self.tiles.values()),
        )

    def check(self) -> None:
        """Prove the ring free of deadlock and overwrite, or raise ``ProtocolError``."""
        check_protocol(self.protocol())

    def _arrays(self) -> tuple[_Array, ...]:
        return tuple(_lay_out(self.stages, self.tiles, self.extra_bytes))


def _aligned(offset_bytes: int, alignment: int) -> int:
    return -(-offset_bytes // alignment) * alignment


def _alignment(tiles: Mapping[str, StagedTile]) -> int:
    return max(_BARRIER_BYTES, *(tile.smem_alignment for tile in tiles.values()))


def _lay_out(stages: int, tiles: Mapping[str, StagedTile], extra_bytes: int) -> Iterator[_Array]:
    """Yield the arrays by offset, the most aligned tiles first, so that little is lost between."""
    kinds = [
        (name, stages, tile.tile_bytes, tile.smem_alignment)
        for name, tile in sorted(tiles.items(), key=lambda item: -item[1].smem_alignment)
    ]
    if extra_bytes:
        kinds.append((_EXTRA, 1, extra_bytes, _alignment(tiles)))
    kinds += [(name, stages, _BARRIER_BYTES, _BARRIER_BYTES) for name in _BARRIERS]
    end_bytes = 0
    for name, slots, size_bytes, alignment in kinds:
        array = _Array(
            name=name,
            slots=slots,
            offset_bytes=_aligned(end_bytes, alignment),
            size_bytes=size_bytes,
            alignment=alignment,
        )
        end_bytes = array.end_bytes
        yield array


def _buffers(array: _Array) -> Iterator[SharedBuffer]:
    for slot in range(array.slots):
        yield SharedBuffer(
            name=array.name,
            stage=None if array.name == _EXTRA else slot,
            offset_bytes=array.offset_bytes + slot * array.stride_bytes,
            size_bytes=array.size_bytes,
            alignment=array.alignment,
        )


def _shared_bytes(stages: int, tiles: Mapping[str, StagedTile], extra_bytes: int) -> int:
    return max(array.end_bytes for array in _lay_out(stages, tiles, extra_bytes))


def _most_stages(tiles: Mapping[str, StagedTile], extra_bytes: int) -> int:
    """Return the most stages that fit, or 0."""
    per_stage = sum(array.stride_bytes for array in _lay_out(1, tiles, 0))
    # + 1: the last buffer of each kind needs no padding after it.
    stages = max(_MAX_SHARED_BYTES - extra_bytes, 0) // per_stage + 1
    while stages and _shared_bytes(stages, tiles, extra_bytes) > _MAX_SHARED_BYTES:
        stages -= 1
    return stages


def _too_large(ring: Pipeline) -> Violation:
    most = _most_stages(ring.tiles, ring.extra_bytes)
    if most:
        remedy = f"Use at most {most} stages, or smaller tiles"
    else:
        one_bytes = _shared_bytes(1, ring.tiles, ring.extra_bytes)
        remedy = f"One stage alone takes {one_bytes}: use smaller tiles or fewer extra_bytes"
    return Violation(
        "shared_bytes",
        ring.shared_bytes,
        f"a block has at most {_MAX_SHARED_BYTES} (227 KiB), and stages is {ring.stages}",
        remedy,
    )


def _violations(ring: Pipeline) -> Iterator[Violation]:
    if ring.stages < 1:
        yield Violation("stages", ring.stages, "it must be at least 1", "Use 2 or more to overlap")
    if ring.consumers < 1:
        yield Violation(
            "consumers",
            ring.consumers,
            "it must be at least 1",
            "Count the arrivals that the consumers of one CTA make when they release a stage",
        )
    if not 1 <= ring.cluster_size <= _MAX_CLUSTER_SIZE:
        yield Violation(
            "cluster_size",
            ring.cluster_size,
            f"it must be from 1 to {_MAX_CLUSTER_SIZE}",
            "Pass 1 without a cluster",
        )
    if ring.extra_bytes < 0:
        yield Violation("extra_bytes", ring.extra_bytes, "it cannot be negative", "Pass 0")
    if not ring.tiles:
        yield Violation("tiles", "{}", "a stage holds at least one tile", 'Pass {"a": tile}')
    yield from _name_violations(ring.tiles)
    for name, tile in ring.tiles.items():
        yield from _tile_violations(name, tile)


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


def _tile_violations(name: str, tile: StagedTile) -> Iterator[Violation]:
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
