"""Activities of all warps of a launch as columns: `lanes` for many blocks at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tmaasync._hardware import WARP_THREADS, WARPGROUP_WARPS
from tmaasync._source.names import element_of
from tmaasync.trace.events import (
    NOBODY,
    NOTHING,
    WAIT_ENDS,
    EventKind,
    NameOf,
    barrier_name,
    mma_name,
    offset_name,
)
from tmaasync.trace.lanes import Activity
from tmaasync.trace.launch import LaunchEvents

ACTIVITIES = tuple(Activity)
"""What the numbers in `Spans.activity` stand for."""

_Array = np.ndarray[Any, Any]
_NUMBER = {activity: number for number, activity in enumerate(ACTIVITIES)}
_LOADS = (EventKind.LOAD_ISSUED, EventKind.LOAD_LANDED)
_NUMBERED = {
    Activity.WAITING_NAMED: EventKind.NAMED_WAIT_END,
    Activity.WAITING_SIGNAL: EventKind.SIGNAL_WAIT_END,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Spans as columns: from ``begin`` to before ``end`` a warp of a block is in an activity.

    ``block`` numbers blocks in no order that means anything; ``barrier`` is `NOTHING`, an offset
    in shared memory, or the number of a named barrier; 0 for a tcgen05.mma.
    """

    block: _Array
    warp: _Array
    activity: _Array
    barrier: _Array
    begin: _Array
    end: _Array

    def __len__(self) -> int:
        return len(self.warp)

    def where(self, chosen: _Array) -> Spans:
        """Return the chosen spans."""
        return Spans(**{each.name: getattr(self, each.name)[chosen] for each in fields(self)})

    @property
    def covered(self) -> int:
        """Time that any of the spans covers, warp by warp: overlaps on one warp count once."""
        if not len(self):
            return 0
        warp = np.unique(self.block << 16 | self.warp, return_inverse=True)[1]
        # One line for all warps, on which they lie apart.
        start = warp * (int(self.end.max()) + 1)
        order = np.argsort(start + self.begin, kind="stable")
        begin, end = (start + self.begin)[order], (start + self.end)[order]
        reached = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
        return int(np.maximum(end - np.maximum(begin, reached), 0).sum())


def thing(activity: Activity, barrier: int, name_of: NameOf) -> str:
    """Return the object of an activity: ``full`` for all barriers of that array; "" if nameless.

    >>> thing(Activity.WAITING_FULL, 64, lambda offset: f"full[{offset // 8 % 4}]")
    'full'
    """
    if activity is Activity.COMPUTING:
        return mma_name(barrier)
    if activity in _NUMBERED:
        return barrier_name(_NUMBERED[activity], barrier, name_of)
    if barrier == NOTHING or (name := name_of(barrier)) == offset_name(barrier):
        return ""
    found = element_of(name)
    return found[0] if found else name


def find_spans(trace: LaunchEvents) -> Spans:
    """Return the waits of all warps, and their wgmma and stores."""
    events = trace.events
    threads = events[events["thread"] != NOBODY]
    waits = _waits(events, threads)
    stores = threads[threads["kind"] == EventKind.STORE_ISSUED]
    if trace.unit == "ns":  # only stores whose read was seen
        stores = stores[np.isin(_keys(stores), _sequences(events, EventKind.STORE_READ))]
    parts = (
        # A wait for a wgmma lies within its time in flight.
        waits.where(waits.activity != _NUMBER[Activity.COMPUTING]),
        _work(threads, events, EventKind.MMA_ISSUED, EventKind.MMA_EXECUTED, Activity.COMPUTING),
        _work(stores, events, EventKind.STORE_ISSUED, EventKind.STORE_READ, Activity.STORING),
    )
    return Spans(
        **{
            each.name: np.concatenate([getattr(part, each.name) for part in parts])
            for each in fields(Spans)
        }
    )


def _blocks(events: _Array) -> _Array:
    blocks: _Array = events["cluster"].astype(np.int64) << 16 | events["rank"]
    return blocks


# --- waits ------------------------------------------------------------------------------------


def _waits(events: _Array, threads: _Array) -> Spans:
    """Return the waits as `find_lanes` does: from the event before a wait's end, or open."""
    order = np.lexsort((np.arange(len(threads)), threads["thread"], _blocks(threads)))
    mine = threads[order]
    same = (_blocks(mine)[1:] == _blocks(mine)[:-1]) & (mine["thread"][1:] == mine["thread"][:-1])
    last = np.flatnonzero(np.isin(mine["kind"], WAIT_ENDS) & np.append(False, same))
    is_open = (mine["kind"] == EventKind.WAIT_BEGIN) & np.append(~same, True)
    opened = np.flatnonzero(is_open[: len(mine)])
    waits = np.concatenate([mine[last], mine[opened]])
    ends = _cluster_ends(events)
    return Spans(
        block=_blocks(waits),
        warp=waits["thread"].astype(np.int64) // WARP_THREADS,
        activity=_activities(waits, events),
        barrier=waits["barrier"].astype(np.int64),
        begin=np.concatenate([mine["time"][last - 1], mine["time"][opened]]).astype(np.int64),
        end=np.concatenate([mine["time"][last].astype(np.int64), ends[mine["cluster"][opened]]]),
    )


def _cluster_ends(events: _Array) -> _Array:
    ends = np.zeros(int(events["cluster"].max(initial=0)) + 1, np.int64)
    np.maximum.at(ends, events["cluster"], events["time"].astype(np.int64))
    return ends


def _activities(waits: _Array, events: _Array) -> _Array:
    """Classify each wait."""
    full = _homes(events[np.isin(events["kind"], _LOADS)])
    is_signal = waits["kind"] == EventKind.SIGNAL_WAIT_END
    has_barrier = (waits["barrier"] != NOTHING) & ~is_signal
    of_loaders = np.isin(_thread_keys(waits), _loaders(events)) & has_barrier
    homes = _homes(waits)
    is_full = np.isin(homes, full)
    is_empty = np.isin(homes, homes[of_loaders & ~is_full])
    awaited = _keys(waits)
    conditions = [
        (waits["kind"] == EventKind.NAMED_WAIT_END, Activity.WAITING_NAMED),
        (waits["kind"] == EventKind.CLUSTER_WAIT_END, Activity.WAITING_CLUSTER),
        (is_signal, Activity.WAITING_SIGNAL),
        (has_barrier & is_full, Activity.WAITING_FULL),
        (has_barrier & is_empty, Activity.WAITING_EMPTY),
        (has_barrier, Activity.WAITING_BARRIER),
        (np.isin(awaited, _sequences(events, EventKind.MMA_ISSUED)), Activity.COMPUTING),
        (np.isin(awaited, _sequences(events, EventKind.STORE_ISSUED)), Activity.WAITING_STORES),
    ]
    numbers: _Array = np.select(
        [condition for condition, _ in conditions],
        [_NUMBER[activity] for _, activity in conditions],
        _NUMBER[Activity.WAITING],
    )
    return numbers


def _homes(events: _Array) -> _Array:
    """Return a key of each event's barrier and its block."""
    block = events["cluster"].astype(np.int64) << 16 | events["other"]
    homes: _Array = block << 32 | events["barrier"]
    return homes


def _thread_keys(events: _Array) -> _Array:
    keys: _Array = _blocks(events) << 16 | events["thread"]
    return keys


def _loaders(events: _Array) -> _Array:
    return np.unique(_thread_keys(events[events["kind"] == EventKind.LOAD_ISSUED]))


def _sequences(events: _Array, kind: EventKind) -> _Array:
    return _keys(events[events["kind"] == kind])


def _keys(events: _Array) -> _Array:
    """Return a key of each event's copy or wgmma and its cluster."""
    keys: _Array = events["cluster"].astype(np.int64) << 32 | events["sequence"]
    return keys


# --- work in flight ---------------------------------------------------------------------------


def _work(
    threads: _Array, events: _Array, begins: EventKind, ends: EventKind, activity: Activity
) -> Spans:
    """Return work in flight from its issue on; a wgmma on all four warps of the warpgroup."""
    issued = threads[threads["kind"] == begins]
    over = _over(events, ends, _sequences(issued, begins), _cluster_ends(events))
    warp = issued["thread"].astype(np.int64) // WARP_THREADS
    copies = np.ones(len(warp), np.int64)
    names = np.full(len(warp), NOTHING, np.int64)
    if begins == EventKind.MMA_ISSUED:
        names[issued["shared"] != NOTHING] = 0
        copies[names == NOTHING] = WARPGROUP_WARPS
        warp = np.where(copies > 1, warp // WARPGROUP_WARPS * WARPGROUP_WARPS, warp)
    number = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    warp = np.repeat(warp, copies) + number
    return Spans(
        block=np.repeat(_blocks(issued), copies),
        warp=warp,
        activity=np.full(len(warp), _NUMBER[activity]),
        barrier=np.repeat(names, copies),
        begin=np.repeat(issued["time"].astype(np.int64), copies),
        end=np.repeat(over, copies),
    )


def _over(events: _Array, kind: EventKind, wanted: _Array, ends: _Array) -> _Array:
    """Return the end of the work of each sequence, or of its cluster."""
    keys = _sequences(events, kind)
    times = events["time"][events["kind"] == kind].astype(np.int64)
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    last = np.searchsorted(keys, wanted, side="right") - 1
    over: _Array = ends[wanted >> 32]
    if len(keys):
        found = (last >= 0) & (keys[np.maximum(last, 0)] == wanted)
        over = np.where(found, times[np.maximum(last, 0)], over)
    return over
