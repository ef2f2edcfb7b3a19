"""The events of launches: one trace per launch, collected while a ``with`` lasts."""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tmaasync.errors import ArgumentError
from tmaasync.trace.events import (
    EVENT_DTYPE,
    NOBODY,
    Event,
    EventKind,
    NameOf,
    offset_name,
    readable,
)
from tmaasync.trace.perfetto import trace_document
from tmaasync.trace.saved import BROKEN, facts_of, told
from tmaasync.trace.summary import Summary, summarize

__all__ = ["Collector", "CollectorOf", "Trace", "current_collector", "load", "record"]

_Extents = tuple[int, int, int]
_NOTES_PER_WARP = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """What one launch did, event by event.

    ``events`` is an array of `EVENT_DTYPE`, cluster by cluster and each in the order of its clock;
    iterating gives `Event` objects instead. ``grid``, ``block`` and ``cluster`` run x, y, z.
    ``name_of`` gives an offset in shared memory its name.

    On the emulator ``unit`` is ``"step"``: times count the steps of the cluster's scheduler, and
    clusters do not share a clock. On the chip it is ``"ns"``, and all blocks share one, within the
    step of the chip's clock. What warps did there is noted in memory of bounded size: ``dropped``
    is how many notes were left out, all of them later than what is there of the same cluster, and
    ``blocks_left_out`` how many blocks, the last of the grid, were not noted at all.
    """

    kernel_name: str
    grid: _Extents
    block: _Extents
    cluster: _Extents
    events: np.ndarray[Any, Any]
    name_of: NameOf = offset_name
    unit: Literal["step", "ns"] = "step"
    dropped: int = 0
    blocks_left_out: int = 0
    end: int = field(init=False)
    """The time of the last event."""

    def __post_init__(self) -> None:
        """Put the events in order.

        Raises:
            ArgumentError: The events are of another type, or one is of no kind there is.
        """
        if self.events.dtype != EVENT_DTYPE:
            raise ArgumentError(
                f"events has dtype {self.events.dtype}; it must be EVENT_DTYPE. "
                "Use numpy.frombuffer(raw, EVENT_DTYPE)."
            )
        unknown = set(np.unique(self.events["kind"]).tolist()) - set(EventKind)
        if unknown:
            raise ArgumentError(
                f"events has kinds {sorted(unknown)}; they must be 1 to {max(EventKind)}. "
                "Record with the runtime of this version."
            )
        order = np.lexsort((self.events["time"], self.events["cluster"]))
        events = self.events[order]
        events.flags.writeable = False
        object.__setattr__(self, "events", events)
        object.__setattr__(self, "end", int(events["time"].max(initial=0)))

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return (readable(record, self.block_at, self.name_of) for record in self.events)

    def __repr__(self) -> str:
        return f"<Trace of {self.kernel_name}: {len(self)} events of {len(self.blocks)} blocks>"

    def of(
        self,
        *,
        cluster: int | None = None,
        block: int | Sequence[int] | None = None,
        kind: EventKind | str | Iterable[EventKind | str] | None = None,
        warp: int | None = None,
    ) -> Trace:
        """The events of a cluster, a block (x, y, z or its number), one or more kinds, a warp."""
        chosen = np.ones(len(self), bool)
        if cluster is not None:
            chosen &= self.events["cluster"] == cluster
        if block is not None:
            chosen &= self._block_indices() == self.block_index(block)
        if kind is not None:
            kinds = (kind,) if isinstance(kind, (EventKind, str)) else tuple(kind)
            chosen &= np.isin(self.events["kind"], [EventKind.of(each) for each in kinds])
        if warp is not None:
            threads = self.events["thread"]
            chosen &= (threads // 32 == warp) & (threads != NOBODY)
        return replace(self, events=self.events[chosen])

    def by_cluster(self) -> Iterator[Trace]:
        """One trace per cluster that has events: what shares a clock."""
        _, starts = np.unique(self.events["cluster"], return_index=True)
        for events in np.split(self.events, starts[1:]) if len(self) else ():
            yield replace(self, events=events)

    def of_first_blocks(self, count: int) -> Trace:
        """The events of the clusters of the first so many blocks that have any."""
        clusters = [self.cluster_of(block) for block in self.blocks[:count]]
        return replace(self, events=self.events[np.isin(self.events["cluster"], clusters)])

    @property
    def blocks(self) -> tuple[_Extents, ...]:
        """The blocks that have events."""
        return tuple(map(self.block_at_index, np.unique(self._block_indices()).tolist()))

    def block_at(self, cluster: int, rank: int) -> _Extents:
        """The block (x, y, z) of this rank in the cluster of this number."""
        clusters = [blocks // size for blocks, size in zip(self.grid, self.cluster, strict=True)]
        at = zip(_unfolded(cluster, clusters), _unfolded(rank, self.cluster), strict=True)
        x, y, z = (
            place * size + within for (place, within), size in zip(at, self.cluster, strict=True)
        )
        return x, y, z

    def block_at_index(self, index: int) -> _Extents:
        """The block (x, y, z) of this number, x fastest."""
        return _unfolded(index, self.grid)

    def block_index(self, block: int | Sequence[int]) -> int:
        """The number of a block, x fastest."""
        if isinstance(block, int):
            inside = 0 <= block < self.grid[0] * self.grid[1] * self.grid[2]
            index = block
        else:
            at = (*block, 0, 0)[:3]
            inside = all(0 <= i < n for i, n in zip(at, self.grid, strict=True))
            index = at[0] + self.grid[0] * (at[1] + self.grid[1] * at[2])
        if not inside:
            raise ArgumentError(
                f"block is {block}; the grid has {' x '.join(map(str, self.grid))} blocks. "
                "Pass its x, y, z or its number, from 0."
            )
        return index

    def cluster_of(self, block: int | Sequence[int]) -> int:
        """The number of the cluster that has this block."""
        at = self.block_at_index(self.block_index(block))
        x, y, z = (i // size for i, size in zip(at, self.cluster, strict=True))
        nx, ny = (self.grid[dim] // self.cluster[dim] for dim in (0, 1))
        return x + nx * (y + ny * z)

    def summary(self) -> Summary:
        """Who waits for whom, and for how much of the time.

        Raises:
            ArgumentError: There are no events.
        """
        if not len(self):
            raise ArgumentError(
                f"trace of {self.kernel_name} has no events. Pass one of a kernel that loads, "
                "stores or waits by this library's headers."
            )
        return summarize(self)

    def to_json(self, *, blocks: int | None = None) -> str:
        """The launch in the trace-event format of Chrome and Perfetto.

        A step is a microsecond there. With ``blocks`` only the first so many are drawn; the file
        has the events of all, for `load`.
        """
        return _json((self,), blocks)

    def save(self, path: str | Path, *, blocks: int | None = None) -> None:
        """Write `to_json`; open the file with https://ui.perfetto.dev, or with `load`."""
        Path(path).write_text(self.to_json(blocks=blocks))

    def _block_indices(self) -> np.ndarray[Any, Any]:
        ranks = self.cluster[0] * self.cluster[1] * self.cluster[2]
        keys = self.events["cluster"].astype(np.int64) * ranks + self.events["rank"]
        distinct, inverse = np.unique(keys, return_inverse=True)
        numbers = [
            self.block_index(self.block_at(*divmod(key, ranks))) for key in distinct.tolist()
        ]
        return np.array(numbers, np.int64)[inverse]


def _unfolded(index: int, extents: Sequence[int]) -> _Extents:
    rest, x = divmod(index, extents[0])
    z, y = divmod(rest, extents[1])
    return x, y, z


def _json(traces: Sequence[Trace], blocks: int | None) -> str:
    drawn = [trace if blocks is None else trace.of_first_blocks(blocks) for trace in traces]
    document = trace_document(drawn)
    document["otherData"]["tmaasync"] = [facts_of(trace) for trace in traces]
    return json.dumps(document, separators=(",", ":"))


def load(path: str | Path) -> Collector:
    """The launches of a file that `save` wrote.

    Raises:
        ArgumentError: There is no such file, or it is another one.
    """
    try:
        document = json.loads(Path(path).read_bytes())
        launches = [Trace(**told(facts)) for facts in document["otherData"]["tmaasync"]]
    except OSError as error:
        raise ArgumentError(
            f"path is {str(path)!r}; it cannot be read ({error.strerror}). Pass a file that "
            "Trace.save wrote."
        ) from None
    except (*BROKEN, ArgumentError, RecursionError):
        raise ArgumentError(
            f"path is {str(path)!r}; it holds no trace of this library. Pass a file that "
            "Trace.save wrote."
        ) from None
    kept = Collector()
    for launch in launches:
        kept.take(launch)
    return kept


# --- collecting -------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Collector:
    """The traces of the launches inside a ``with record()``, in their order.

    ``notes_per_warp`` is how much is kept of a warp on the chip; ``latest`` how many launches are,
    by default all.
    """

    notes_per_warp: int = _NOTES_PER_WARP
    latest: int | None = None
    _launches: list[Trace] = field(default_factory=list)

    @property
    def launches(self) -> tuple[Trace, ...]:
        """One trace per launch."""
        return tuple(self._launches)

    @property
    def events(self) -> np.ndarray[Any, Any]:
        """The events of all launches, one after the other."""
        return np.concatenate([np.empty(0, EVENT_DTYPE), *(one.events for one in self._launches)])

    def __len__(self) -> int:
        return sum(map(len, self._launches))

    def __iter__(self) -> Iterator[Event]:
        return (event for launch in self._launches for event in launch)

    def add(
        self,
        kernel_name: str,
        grid: _Extents,
        block: _Extents,
        cluster: _Extents | None,
        raw: bytes | bytearray | memoryview,
        name_of: NameOf | None = None,
    ) -> Trace:
        """Take over the records of a launch that is over; ``raw`` is copied."""
        if len(memoryview(raw).cast("B")) % EVENT_DTYPE.itemsize:
            raise ArgumentError(
                f"raw has {len(memoryview(raw).cast('B'))} bytes; it must hold whole records of "
                f"{EVENT_DTYPE.itemsize}. Pass all that the runtime returned."
            )
        trace = Trace(
            kernel_name=kernel_name,
            grid=grid,
            block=block,
            cluster=cluster or (1, 1, 1),
            events=np.frombuffer(raw, EVENT_DTYPE),
            name_of=name_of or offset_name,
        )
        self.take(trace)
        return trace

    def take(self, trace: Trace) -> None:
        """Keep the trace of one more launch."""
        self._launches.append(trace)
        if self.latest is not None:
            del self._launches[: -self.latest]

    def to_json(self, *, blocks: int | None = None) -> str:
        """As `Trace.to_json`, the launches one after the other."""
        return _json(self._launches, blocks)

    def save(self, path: str | Path, *, blocks: int | None = None) -> None:
        """Write `to_json`; open the file with https://ui.perfetto.dev, or with `load`."""
        Path(path).write_text(self.to_json(blocks=blocks))


_COLLECTOR = contextvars.ContextVar[Collector | None]("tmaasync collector", default=None)


@contextlib.contextmanager
def record(*, notes_per_warp: int = _NOTES_PER_WARP) -> Iterator[Collector]:
    """Keep the events of the launches inside the ``with``, on the CPU and on a GPU.

    On a GPU a launch is built once more for it, takes longer, and is over when it returns. Launches
    that other threads make, or that a CUDA graph replays, are not kept.

    Args:
        notes_per_warp: How much each warp on a GPU has room for, 16 bytes each: a wait, an arrival
            or a copy is one. Traces say how many were left out.

    >>> with record() as trace:
    ...     pass  # launches
    >>> len(trace.events), trace.launches
    (0, ())

    Raises:
        ArgumentError: There is room for nothing.
    """
    if notes_per_warp < 1:
        raise ArgumentError(
            f"notes_per_warp is {notes_per_warp}; it must be 1 or more. Leave it out for "
            f"{_NOTES_PER_WARP}."
        )
    collector = Collector(notes_per_warp)
    token = _COLLECTOR.set(collector)
    try:
        yield collector
    finally:
        _COLLECTOR.reset(token)


CollectorOf = Callable[[], Collector | None]
"""Who takes the trace of a launch made here and now; None if nobody wants any."""

# The variable's own method: every launch asks, and a function around it would take longer.
current_collector: CollectorOf = _COLLECTOR.get
"""Who takes the traces of launches made here and now: a `Collector`, or None if nobody does."""
