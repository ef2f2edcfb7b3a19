"""Lanes of warps over time: their waits, and their work in flight."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync._hardware import WARP_THREADS, WARPGROUP_WARPS
from tmaasync._kinds import check_flags
from tmaasync.trace.events import (
    NOBODY,
    NOTHING,
    WAIT_ENDS,
    EventKind,
    barrier_name,
    mma_name,
)
from tmaasync.trace.launch import LaunchEvents, check_trace
from tmaasync.trace.pipelines import Pipeline, find_pipelines

_Events = np.ndarray[Any, Any]


class Activity(enum.Enum):
    """A warp's wait or work.

    The first eight are waits. ``COMPUTING`` lasts from the issue of a wgmma to the end of the wait
    for it, of a tcgen05.mma until it has run, ``STORING`` from the issue of a store until TMA has
    read its buffer. Both may overlap waits and each other.
    """

    WAITING_FULL = "waits on a full barrier"
    WAITING_EMPTY = "waits on an empty barrier"
    WAITING_BARRIER = "waits on another mbarrier"
    WAITING_NAMED = "waits on a named barrier"
    WAITING_CLUSTER = "waits for the cluster"
    WAITING_SIGNAL = "waits for a signal"
    WAITING_STORES = "waits for stores"
    WAITING = "waits"
    LOADING = "issues a load"
    COMPUTING = "MMA in flight"
    STORING = "store in flight"

    @property
    def is_wait(self) -> bool:
        """True if the warp is blocked."""
        return self not in (Activity.LOADING, Activity.COMPUTING, Activity.STORING)


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """A thread of the lane is in this activity from ``begin`` to before ``end``."""

    activity: Activity
    begin: int
    end: int
    name: str
    barrier: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Warps of one warpgroup that do the same and have the same role.

    ``loads`` are the time and the sequence of each load they issue. ``role`` is what the kernel
    calls the warps with ``set_role``.
    """

    block: tuple[int, int, int]
    warps: tuple[int, ...]
    spans: tuple[LaneSpan, ...]
    loads: tuple[tuple[int, int], ...]
    role: str | None = None

    @property
    def name(self) -> str:
        """``producer (warp 0)``; without a role ``warp 0``, ``warps 5-7``."""
        return role_and_warps(self.role, self.warps)


def find_lanes(
    trace: LaunchEvents,
    *,
    block: int | Sequence[int],
    pipelines: Iterable[Pipeline] | None = None,
    alike: bool = True,
) -> tuple[Lane, ...]:
    """Return the lanes of a block, by warp. Warps that only join named barriers have none.

    With ``alike``, warps of a warpgroup are one lane if they do the same things on the same
    barriers, whatever the times; otherwise every warp has its own.
    """
    check_trace(trace)
    check_flags(alike=alike)
    pipelines = find_pipelines(trace, block=block) if pipelines is None else pipelines
    of_block = trace.of(block=block)
    events = of_block.events[of_block.events["thread"] != NOBODY]
    end = trace.of(cluster=trace.cluster_of(block)).end
    spans = _spans_by_warp(of_block, events, _barrier_waits(pipelines), end)
    where = trace.block_at_index(trace.block_index(block))
    return tuple(
        Lane(
            block=where,
            warps=warps,
            spans=_union(span for warp in warps for span in spans[warp]),
            loads=_loads(events, warps),
            role=trace.role_of(where, warps[0]),
        )
        for group in _alike(events, lambda warp: trace.role_of(where, warp))
        for warps in ((group,) if alike else ((warp,) for warp in group))
    )


def _barrier_waits(pipelines: Iterable[Pipeline]) -> dict[int, Activity]:
    """Return the kind of wait for each barrier of the pipelines."""
    waits: dict[int, Activity] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            waits[stage.full] = Activity.WAITING_FULL
            if stage.empty is not None:
                waits[stage.empty] = Activity.WAITING_EMPTY
    return waits


# --- which warps are alike --------------------------------------------------------------------

_MEETINGS = (
    EventKind.NAMED_ARRIVE,
    EventKind.NAMED_WAIT_END,
    EventKind.CLUSTER_ARRIVE,
    EventKind.CLUSTER_WAIT_END,
    EventKind.THREAD_END,
)


def _alike(events: _Events, role_of: Callable[[int], str | None]) -> Iterator[tuple[int, ...]]:
    """Group warps by warpgroup, role and what they do; leave out warps that only join barriers."""
    deeds = _deeds(events)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for warp in sorted(deeds):
        if any(deed[0] not in _MEETINGS for deed in deeds[warp]):
            key = (warp // WARPGROUP_WARPS, role_of(warp), frozenset(deeds[warp]))
            groups[key].append(warp)
    return (tuple(warps) for warps in groups.values())


def _deeds(events: _Events) -> dict[int, set[tuple[int, ...]]]:
    """Return the kinds of events of each warp; sequences and times differ between like warps."""
    deeds: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    names = ("kind", "shared", "barrier", "phase", "other", "bytes")
    columns = [events["thread"] // WARP_THREADS, *(events[name] for name in names)]
    if len(events):
        distinct = np.unique(np.stack([column.astype(np.int64) for column in columns], 1), axis=0)
        for warp, kind, *rest in distinct.tolist():
            if kind in (EventKind.MMA_ISSUED, EventKind.MMA_EXECUTED):
                first = warp // WARPGROUP_WARPS * WARPGROUP_WARPS
                for member in range(first, first + WARPGROUP_WARPS):
                    deeds[member].add((kind, 0))
            else:
                deeds[warp].add((kind, *rest))
    return deeds


def _loads(events: _Events, warps: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    issued = (events["kind"] == EventKind.LOAD_ISSUED) & np.isin(
        events["thread"] // WARP_THREADS, warps
    )
    chosen = events[issued]
    return tuple(zip(chosen["time"].tolist(), chosen["sequence"].tolist(), strict=True))


# --- what a warp does when --------------------------------------------------------------------

_BEGINS = (EventKind.WAIT_BEGIN,)


def _spans_by_warp(
    trace: LaunchEvents, events: _Events, kinds: dict[int, Activity], end: int
) -> dict[int, list[LaneSpan]]:
    spans: dict[int, list[LaneSpan]] = defaultdict(list)
    work = {**_work(events, EventKind.MMA_ISSUED), **_work(events, EventKind.STORE_ISSUED)}
    for warp, record, begin, over in _waits(events, end):
        activity = _waited(record, kinds, work)
        name = _name_of_wait(trace, record, activity)
        barrier = int(record["barrier"])
        spans[warp].append(
            LaneSpan(activity, begin, over, name, None if barrier == NOTHING else barrier)
        )
    for warp, span in _work_spans(trace, events, end):
        spans[warp].append(span)
    return spans


def _waits(events: _Events, end: int) -> Iterator[tuple[int, Any, int, int]]:
    """Yield warp, record, begin and end of every wait.

    A wait begins at the event before its end, since the thread does nothing else. A wait that is
    the last event of its thread never ended.
    """
    mine = events[np.argsort(events["thread"], kind="stable")]
    if not len(mine):
        return
    same = np.append(mine["thread"][1:] == mine["thread"][:-1], False)  # as the next record's
    ends = np.isin(mine["kind"], WAIT_ENDS)
    for last in np.flatnonzero(ends & np.append(False, same[:-1])):
        yield _wait(mine[last], mine[last - 1]["time"], mine[last]["time"])
    for open_ended in np.flatnonzero(np.isin(mine["kind"], _BEGINS) & ~same):
        yield _wait(mine[open_ended], mine[open_ended]["time"], end)


def _wait(record: Any, begin: Any, end: Any) -> tuple[int, Any, int, int]:
    return int(record["thread"]) // WARP_THREADS, record, int(begin), int(end)


def _work(events: _Events, kind: EventKind) -> dict[int, EventKind]:
    issued = events[events["kind"] == kind]
    return dict.fromkeys(issued["sequence"].tolist(), kind)


def _waited(record: Any, kinds: dict[int, Activity], work: dict[int, EventKind]) -> Activity:
    """Classify a wait: by the barrier, or by the copy or the wgmma that it names."""
    if record["kind"] == EventKind.NAMED_WAIT_END:
        return Activity.WAITING_NAMED
    if record["kind"] == EventKind.CLUSTER_WAIT_END:
        return Activity.WAITING_CLUSTER
    if record["kind"] == EventKind.SIGNAL_WAIT_END:
        return Activity.WAITING_SIGNAL
    if record["barrier"] != NOTHING:
        return kinds.get(int(record["barrier"]), Activity.WAITING_BARRIER)
    awaited = work.get(int(record["sequence"]))
    if awaited is None:
        return Activity.WAITING
    return Activity.COMPUTING if awaited == EventKind.MMA_ISSUED else Activity.WAITING_STORES


def _name_of_wait(trace: LaunchEvents, record: Any, activity: Activity) -> str:
    if activity is Activity.COMPUTING:
        return "wgmma"
    if record["barrier"] == NOTHING:
        return str(activity.value).removeprefix("waits for ")
    if activity is Activity.WAITING_CLUSTER:
        return "cluster"
    return barrier_name(int(record["kind"]), int(record["barrier"]), trace.name_of)


def _work_spans(trace: LaunchEvents, events: _Events, end: int) -> Iterator[tuple[int, LaneSpan]]:
    """Yield every MMA until it has run, every store until its buffer has been read.

    On the GPU, stores whose read no wait has seen are left out.
    """
    done = trace.of(kind=(EventKind.MMA_EXECUTED, EventKind.STORE_READ)).events
    ends = dict(zip(done["sequence"].tolist(), done["time"].tolist(), strict=True))
    for issued, warps in _issued(events):
        is_mma = issued["kind"] == EventKind.MMA_ISSUED
        if trace.unit == "ns" and not is_mma and int(issued["sequence"]) not in ends:
            continue
        over = ends.get(int(issued["sequence"]), end)
        shared = int(issued["shared"])
        name = mma_name(shared) if is_mma else trace.name_of(shared)
        activity = Activity.COMPUTING if is_mma else Activity.STORING
        span = LaneSpan(activity, int(issued["time"]), over, name)
        yield from ((warp, span) for warp in warps)


def _issued(events: _Events) -> Iterator[tuple[Any, range]]:
    """Yield each wgmma with the four warps of its warpgroup, others with the warp that issued."""
    seen: set[tuple[int, int]] = set()
    for record in events[np.isin(events["kind"], (EventKind.MMA_ISSUED, EventKind.STORE_ISSUED))]:
        warp, sequence = int(record["thread"]) // WARP_THREADS, int(record["sequence"])
        is_tcgen05 = record["kind"] == EventKind.MMA_ISSUED and record["shared"] != NOTHING
        if record["kind"] == EventKind.STORE_ISSUED or is_tcgen05:
            yield record, range(warp, warp + 1)
            continue
        first = warp // WARPGROUP_WARPS * WARPGROUP_WARPS
        if (first, sequence) not in seen:
            seen.add((first, sequence))
            yield record, range(first, first + WARPGROUP_WARPS)


# --- spans ------------------------------------------------------------------------------------


def _union(spans: Iterable[LaneSpan]) -> tuple[LaneSpan, ...]:
    """Merge touching spans of one activity and name, sort them by begin, and drop empty ones."""
    lasting = [span for span in spans if span.begin < span.end]
    kinds = sorted({(span.activity.name, span.name) for span in lasting})
    united: list[LaneSpan] = []
    for kind in kinds:
        alike = [span for span in lasting if (span.activity.name, span.name) == kind]
        united += _merged(sorted(alike, key=lambda span: span.begin))
    return tuple(sorted(united, key=lambda span: (span.begin, span.activity.name, span.name)))


def _merged(spans: list[LaneSpan]) -> list[LaneSpan]:
    merged: list[LaneSpan] = []
    for span in spans:
        if merged and span.begin <= merged[-1].end:
            last = merged.pop()
            end = max(last.end, span.end)
            span = LaneSpan(span.activity, last.begin, end, span.name, span.barrier)
        merged.append(span)
    return merged


def packed(spans: Iterable[LaneSpan]) -> tuple[tuple[LaneSpan, ...], ...]:
    """Return the spans in rows; spans of one row do not overlap."""
    rows: list[list[LaneSpan]] = []
    for span in sorted(spans, key=lambda span: span.begin):
        row = next((row for row in rows if row[-1].end <= span.begin), None)
        if row is None:
            row = []
            rows.append(row)
        row.append(span)
    return tuple(tuple(row) for row in rows)


def warp_names(warps: Sequence[int]) -> str:
    """Return the common name of these warps.

    >>> warp_names([0]), warp_names([4, 6, 7])
    ('warp 0', 'warps 4, 6-7')
    """
    return f"warp{'s' if len(warps) > 1 else ''} {', '.join(_ranges(warps))}"


def role_and_warps(role: str | None, warps: Sequence[int]) -> str:
    """Return the name of warps with this role.

    >>> role_and_warps("consumer 0", [4, 5, 6, 7]), role_and_warps(None, [0])
    ('consumer 0 (warps 4-7)', 'warp 0')
    """
    return warp_names(warps) if role is None else f"{role} ({warp_names(warps)})"


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Yield consecutive numbers as ``4-7``."""
    first = last = numbers[0]
    for number in (*numbers[1:], -1):
        if number == last + 1:
            last = number
            continue
        yield str(first) if first == last else f"{first}-{last}"
        first = last = number
