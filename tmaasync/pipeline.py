"""Pipelines: stages of shared memory that a producer fills and consumers empty (a ring buffer).

Each stage holds one buffer per tile and two barriers. Every role cycles through the stages with its
own `PipelineState`, and waits on ``state.phase`` of the barrier at ``state.index``:

| role | first phase | waits on | then |
|---|---|---|---|
| producer | 1: fresh barriers pass | ``empty[index]`` | expects bytes on ``full[index]``, loads |
| consumer | 0 | ``full[index]`` | reads, arrives on ``empty[index]`` |
| either | | | ``step()``: index + 1; the phase toggles when the index wraps to 0 |

| barrier | arrivals per phase | bytes per phase | completes when |
|---|---|---|---|
| ``full[stage]`` | `Pipeline.full_arrivals` | `Pipeline.stage_bytes` | all loads landed |
| ``empty[stage]`` | `Pipeline.empty_arrivals` | - | all consumers have read |

The producer expects the bytes before it loads, and a consumer arrives after its reads are done.
`Pipeline.check` searches all interleavings of these steps for a deadlock or an overwrite.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NotRequired, Self, TypedDict, Unpack

from tmaasync._hardware import ARCH_LIMITS, MAX_BLOCK_THREADS, ChipLimits
from tmaasync._kinds import as_int, check_integers, not_integers, shown
from tmaasync._pipeline.check import PipelineFault, check_protocol, find_fault
from tmaasync._pipeline.protocol import PipelineProtocol
from tmaasync._pipeline.shared_map import (
    BufferArray,
    RingLayout,
    SharedBuffer,
    StagedTile,
    tile_violations,
)
from tmaasync.barrier import MAX_ARRIVALS
from tmaasync.errors import ArgumentError, Violation

__all__ = [
    "Pipeline",
    "PipelineFault",
    "PipelineProtocol",
    "PipelineState",
    "SharedBuffer",
    "StagedTile",
    "check_protocol",
    "find_fault",
]


@dataclass(slots=True)
class PipelineState:
    """The position of one role in a pipeline: stage index, phase and step count.

    ``phase`` is the parity to wait on; it toggles each time the index wraps to 0.

    >>> state = PipelineState.for_consumer(2)
    >>> for _ in range(3):
    ...     state.step()
    >>> state
    PipelineState(stages=2, index=1, phase=1, count=3)
    """

    stages: int
    index: int = 0
    phase: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        """Reject an index outside the stages, and a phase other than 0 or 1."""
        check_integers(stages=self.stages, index=self.index, phase=self.phase, count=self.count)
        if self.stages < 0 or not 0 <= self.index < max(self.stages, 1) or self.phase not in (0, 1):
            raise ArgumentError.broken(
                "stages, index, phase",
                f"{self.stages}, {self.index}, {self.phase}",
                "stages must be at least 0, index below stages, and phase 0 or 1",
                "Start from PipelineState.for_producer(stages) or .for_consumer(stages)",
                verb="are",
            )

    @classmethod
    def for_producer(cls, stages: int) -> Self:
        """Return the producer's initial state; the producer waits on the empty barriers.

        Its phase is 1, the parity before phase 0 of a fresh barrier. All stages are empty at first,
        so the waits of the first lap return at once. If the consumers arrive on every empty barrier
        before the loop, start from ``for_consumer`` instead.
        """
        return cls(stages, phase=1)

    @classmethod
    def for_consumer(cls, stages: int) -> Self:
        """Return a consumer's initial state; consumers wait on the full barriers."""
        return cls(stages)

    def __enter__(self) -> Self:
        """Return this state itself, as upstream does."""
        return self

    def __exit__(self, *_: object) -> None: ...

    def step(self) -> None:
        """Move to the next stage; a pipeline without stages does not move."""
        if self.stages == 0:
            return
        self.count += 1
        self.index += 1
        if self.index == self.stages:
            self.index = 0
            self.phase ^= 1

    def advance(self, stages: int) -> None:
        """Move forward by ``stages`` stages, possibly several laps."""
        check_integers(stages=stages)
        if stages < 0:
            rule, remedy = "a pipeline goes forwards", "Pass 0 or more"
            raise ArgumentError.broken("stages", stages, rule, remedy)
        if self.stages == 0:
            return
        laps, index = divmod(self.index + int(stages), self.stages)
        self.count += int(stages)
        self.index = index
        self.phase ^= laps & 1

    def next(self) -> Self:
        """Step, then return a copy of the new state."""
        self.step()
        return copy.copy(self)


_INTEGERS = (
    "stages",
    "consumers",
    "cluster_size",
    "producer_threads",
    "extra_bytes",
    "loads_ahead",
)


class _RingArguments(TypedDict):
    tiles: Mapping[str, StagedTile]
    consumers: NotRequired[int]
    cluster_size: NotRequired[int]
    producer_threads: NotRequired[int | None]
    side: NotRequired[Mapping[str, StagedTile]]
    extra_bytes: NotRequired[int]
    loads_ahead: NotRequired[int | None]
    arch: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The host counterpart of `Ring` and `StoreRing`: stages of tiles, with their barriers.

    Its arguments mirror the device type ``Ring<Stage, stages, ...>``, whose ``Stage`` has one
    member per entry of ``tiles``:

    * ``consumers``: ``ConsumerWarps<consumers>``, the warps of a CTA that read every stage.
    * ``cluster_size``: ``Multicast<cluster_size>``.
    * ``producer_threads``: ``ProducerThreads<n>``; threads fill the stages instead of TMA.
    * ``side``: the members of ``Side``, small tiles of each stage, placed after the barriers.
    * ``loads_ahead``: ``StoreRing<Stage, stages, loads_ahead>``; TMA stores drain the stages.

    ``arch`` is the architecture whose limits hold: 227 KiB of shared memory for a CTA of sm_90a,
    sm_100a and sm_103a, 99 KiB of sm_120a (CUDA Programming Guide, "Compute Capabilities").
    Shared memory holds the ring and then ``extra_bytes``, for example for an epilogue. Offsets
    count from a base aligned to ``shared_alignment``.

    >>> from types import SimpleNamespace
    >>> tile = SimpleNamespace(tile_bytes=16384, smem_alignment=1024)
    >>> pipeline = Pipeline.fit(tiles={"a": tile, "b": tile}, consumers=8)
    >>> pipeline.stages, pipeline.stage_bytes, pipeline.shared_bytes
    (7, 32768, 230400)
    >>> pipeline.check()
    """

    stages: int
    _: KW_ONLY
    tiles: Mapping[str, StagedTile]
    consumers: int = 1
    cluster_size: int = 1
    producer_threads: int | None = None
    side: Mapping[str, StagedTile] = field(default_factory=dict)
    extra_bytes: int = 0
    loads_ahead: int | None = None
    arch: str = "sm_90a"

    def __post_init__(self) -> None:
        """Reject invalid numbers, and a pipeline that does not fit in shared memory."""
        ArgumentError.raise_for(_kind_violations(self))
        for name in _INTEGERS:
            object.__setattr__(self, name, as_int(getattr(self, name)))
        object.__setattr__(self, "tiles", dict(self.tiles))
        object.__setattr__(self, "side", dict(self.side))
        ArgumentError.raise_for(_violations(self))
        if self.shared_bytes > self._limits.shared_bytes:
            raise ArgumentError.of([_too_large(self)])

    @classmethod
    def fit(cls, *, max_stages: int | None = None, **arguments: Unpack[_RingArguments]) -> Self:
        """Return the pipeline with the most stages that fit in shared memory."""
        # The constructor rejects bad arguments here, with a single stage.
        smallest = cls(1, **arguments)
        if max_stages is not None:
            check_integers(max_stages=max_stages)
        stages = smallest._layout.most_stages()
        return cls(stages if max_stages is None else min(stages, max_stages), **arguments)

    @property
    def stage_bytes(self) -> int:
        """Bytes that land in one stage, and that its full barrier must expect, in every CTA."""
        return sum(tile.tile_bytes for tile in (*self.tiles.values(), *self.side.values()))

    @property
    def full_arrivals(self) -> int:
        """Arrivals that fill a stage: one with the expected bytes, or one per producer thread."""
        return self.producer_threads or 1

    @property
    def empty_arrivals(self) -> int:
        """Arrivals that empty a stage: one from every consumer in the cluster."""
        return self.consumers * self.cluster_size

    @property
    def shared_alignment(self) -> int:
        """The required alignment of the map's base, in bytes."""
        return self._layout.alignment

    @property
    def shared_map(self) -> tuple[SharedBuffer, ...]:
        """All buffers, sorted by offset: stages, barriers, side tiles and extra bytes."""
        found = (buffer for array in self._arrays() for buffer in array.buffers())
        return tuple(sorted(found, key=lambda buffer: buffer.offset_bytes))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch, in bytes: ``sizeof`` the kernel's struct."""
        return self._layout.shared_bytes(self.stages)

    def constants(self) -> dict[str, int]:
        """Return the compile-time constants of a kernel with this pipeline.

        They are the ring's arguments, the barriers' arrival counts, and offsets: tile ``a`` of
        stage ``s`` lies at ``A_OFFSET + s * A_STRIDE``.
        """
        optional = {"PRODUCER_THREADS": self.producer_threads, "LOADS_AHEAD": self.loads_ahead}
        return {
            "STAGES": self.stages,
            "STAGE_BYTES": self.stage_bytes,
            "SHARED_BYTES": self.shared_bytes,
            "SHARED_ALIGNMENT": self.shared_alignment,
            "CONSUMERS": self.consumers,
            "CLUSTER_SIZE": self.cluster_size,
            "FULL_ARRIVALS": self.full_arrivals,
            "EMPTY_ARRIVALS": self.empty_arrivals,
            **{name: value for name, value in optional.items() if value is not None},
            **{f"{array.name.upper()}_OFFSET": array.offset_bytes for array in self._arrays()},
            **{
                f"{array.name.upper()}_STRIDE": array.stride_bytes
                for array in self._arrays()
                if array.name in self.tiles or array.name in self.side
            },
        }

    def protocol(self) -> PipelineProtocol:
        """Return the protocol that a kernel with this pipeline must follow.

        The CTAs of a cluster have equal pipelines, and consumers of all CTAs release each stage. So
        one pipeline with all these consumers models the cluster. A producer thread's arrival after
        its copies is modelled as an arrival and bytes. If TMA stores drain the stages, the bulk
        groups in flight count as reads in flight.
        """
        load_bytes = tuple(tile.tile_bytes for tile in (*self.tiles.values(), *self.side.values()))
        protocol = PipelineProtocol.standard(
            self.stages, consumers=self.empty_arrivals, load_bytes=load_bytes
        )
        if self.producer_threads is not None:
            protocol = replace(
                protocol,
                producers=self.producer_threads,
                full_arrivals=self.full_arrivals,
                producer=("wait", "expect_tx", "load", "arrive"),
            )
        if self.loads_ahead is not None:
            stores = self.stages - self.loads_ahead
            protocol = replace(protocol, reads_in_flight=stores, release_lag=stores)
        return protocol

    def check(self) -> None:
        """Prove the pipeline free of deadlock and overwrite, or raise ``ProtocolError``."""
        check_protocol(self.protocol())

    @property
    def _layout(self) -> RingLayout:
        return RingLayout(
            tiles=self.tiles,
            side=self.side,
            extra_bytes=self.extra_bytes,
            is_stored=self.loads_ahead is not None,
            limit_bytes=self._limits.shared_bytes,
        )

    @property
    def _limits(self) -> ChipLimits:
        return ARCH_LIMITS[self.arch]

    def _arrays(self) -> Iterator[BufferArray]:
        return self._layout.arrays(self.stages)


def _too_large(pipeline: Pipeline) -> Violation:
    layout = pipeline._layout
    most = layout.most_stages()
    if most:
        remedy = f"Use at most {most} stages, or smaller tiles"
    else:
        remedy = (
            f"One stage alone takes {layout.shared_bytes(1)}: use smaller tiles or fewer "
            "extra_bytes"
        )
    limit = layout.limit_bytes
    return Violation(
        "shared_bytes",
        pipeline.shared_bytes,
        f"a block has at most {limit} ({limit // 1024} KiB), and stages is {pipeline.stages}",
        remedy,
    )


def _kind_violations(pipeline: Pipeline) -> Iterator[Violation]:
    arch: object = pipeline.arch
    if not isinstance(arch, str) or arch not in ARCH_LIMITS:
        remedy = f"Pass one of {', '.join(ARCH_LIMITS)}"
        yield Violation("arch", shown(arch), "its limits are not known", remedy)
    optional = {
        name: value
        for name in ("producer_threads", "loads_ahead")
        if (value := getattr(pipeline, name)) is not None
    }
    yield from not_integers(
        stages=pipeline.stages,
        consumers=pipeline.consumers,
        cluster_size=pipeline.cluster_size,
        extra_bytes=pipeline.extra_bytes,
        **optional,
    )
    for name in ("tiles", "side"):
        if not isinstance(value := getattr(pipeline, name), Mapping):
            rule, remedy = "it maps names of members to tiles", "Pass a dict, such as {'a': tile}"
            yield Violation(name, shown(value), rule, remedy)


def _violations(pipeline: Pipeline) -> Iterator[Violation]:
    if pipeline.stages < 1:
        yield Violation(
            "stages", pipeline.stages, "it must be at least 1", "Use 2 or more to overlap"
        )
    if pipeline.consumers < 1:
        yield Violation(
            "consumers",
            pipeline.consumers,
            "it must be at least 1",
            "Count the arrivals that the consumers of one CTA make when they release a stage",
        )
    elif pipeline.empty_arrivals > MAX_ARRIVALS:
        yield Violation(
            "consumers",
            pipeline.consumers,
            f"{pipeline.cluster_size} CTAs make {pipeline.empty_arrivals} arrivals, and an "
            f"mbarrier counts up to {MAX_ARRIVALS}",
            "Let one thread of a warp arrive",
        )
    most = pipeline._limits.cluster_blocks
    if not 1 <= pipeline.cluster_size <= most:
        yield Violation(
            "cluster_size",
            pipeline.cluster_size,
            f"it must be from 1 to {most}",
            "Pass 1 without a cluster",
        )
    if pipeline.extra_bytes < 0:
        yield Violation("extra_bytes", pipeline.extra_bytes, "it cannot be negative", "Pass 0")
    yield from _producer_violations(pipeline)
    yield from _store_violations(pipeline)
    yield from tile_violations(pipeline.tiles, pipeline.side)


def _producer_violations(pipeline: Pipeline) -> Iterator[Violation]:
    threads = pipeline.producer_threads
    if threads is None:
        return
    if not 1 <= threads <= MAX_BLOCK_THREADS:
        yield Violation(
            "producer_threads",
            threads,
            f"a block has 1 to {MAX_BLOCK_THREADS} threads",
            "Leave it out where TMA fills the stages",
        )
    if pipeline.cluster_size != 1:
        yield Violation(
            "cluster_size",
            pipeline.cluster_size,
            "only TMA multicasts, and producer_threads is set",
            "Pass cluster_size=1, or leave out producer_threads",
        )


def _store_violations(pipeline: Pipeline) -> Iterator[Violation]:
    if pipeline.loads_ahead is None:
        return
    if not 1 <= pipeline.loads_ahead <= pipeline.stages:
        yield Violation(
            "loads_ahead",
            pipeline.loads_ahead,
            f"loads in flight take 1 stage at least, and all {pipeline.stages} at most",
            "Use about half of the stages",
        )
    alone: dict[str, Any] = {
        "consumers": 1,
        "cluster_size": 1,
        "producer_threads": None,
        "side": {},
    }
    for name, default in alone.items():
        if getattr(pipeline, name) != default:
            yield Violation(
                name,
                getattr(pipeline, name),
                "with loads_ahead one thread loads and stores all stages with TMA",
                f"Leave out {name}, or loads_ahead",
            )
