"""Summary of a launch: who waits for whom, and for how much of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync._hardware import WARP_THREADS, WARPGROUP_WARPS
from tmaasync.trace.events import NOBODY, NOTHING, EventKind
from tmaasync.trace.lanes import Activity, role_and_warps
from tmaasync.trace.launch import LaunchEvents
from tmaasync.trace.spans import ACTIVITIES, Spans, find_spans, thing

_Array = np.ndarray[Any, Any]
_Names = dict[int, str]
_DEEDS = {
    EventKind.LOAD_ISSUED: "loads",
    EventKind.MMA_ISSUED: "multiplies",
    EventKind.STORE_ISSUED: "stores",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of a role's time that one activity takes.

    ``on`` is the array of barriers by its name in the source, if it has one, and ``whom`` are the
    roles that arrive on them. ``share`` is of the time of the role's warps, from 0 to 1. ``count``
    is how often, on all warps together; ``mean`` and ``longest`` are in the trace's unit.
    """

    activity: Activity
    on: str
    whom: tuple[str, ...]
    share: float
    count: int
    mean: float
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Warps of one warpgroup that do the same kinds of things, in all blocks.

    ``role`` is what the kernel calls them with ``set_role``; ``name`` has it and their numbers.
    """

    name: str
    role: str | None
    warps: tuple[int, ...]
    deeds: tuple[str, ...]
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One launch. Times are in ``unit``.

    ``time`` is from the first to the last event, ``block_time`` the same of a block, on average.
    A role's time is the time of its blocks, for each of its warps: shares add up to less than 1 if
    warps do what leaves no event, and to more if stores or wgmma overlap a wait.
    """

    kernel_name: str
    unit: str
    time: int
    block_time: float
    blocks: int
    events: int
    dropped: int
    blocks_left_out: int
    roles: tuple[Role, ...]


def summarize(trace: LaunchEvents) -> Summary:
    """Summarise one launch."""
    threads = trace.events[trace.events["thread"] != NOBODY]
    spans = find_spans(trace)
    profiles = _profiles(trace, threads, spans)
    role_names = _role_names(trace)
    roles = _roles(profiles, role_names)
    names = {warp: name for name, warps in roles.items() for warp in warps}
    times = _block_times(threads)
    return Summary(
        kernel_name=trace.kernel_name,
        unit=trace.unit,
        time=trace.end - int(trace.events["time"].min(initial=trace.end)),
        block_time=float(times.mean()) if len(times) else 0.0,
        blocks=len(times),
        events=len(trace),
        dropped=trace.dropped,
        blocks_left_out=trace.blocks_left_out,
        roles=tuple(
            Role(
                name=name,
                role=role_names.get(warps[0]),
                warps=warps,
                deeds=tuple(deed for deed in _DEEDS.values() if deed in profiles[warps[0]]),
                shares=tuple(_shares(trace, spans, warps, int(times.sum()), names)),
            )
            for name, warps in roles.items()
        ),
    )


def _block_times(threads: _Array) -> _Array:
    """Return the time from the first to the last event of the threads of every block."""
    keys = threads["cluster"].astype(np.int64) << 16 | threads["rank"]
    blocks, block = np.unique(keys, return_inverse=True)
    times = threads["time"].astype(np.int64)
    first, last = np.full(len(blocks), times.max(initial=0)), np.zeros(len(blocks), np.int64)
    np.minimum.at(first, block, times)
    np.maximum.at(last, block, times)
    lengths: _Array = last - first
    return lengths


# --- roles ------------------------------------------------------------------------------------

_MEETINGS = (Activity.WAITING_NAMED, Activity.WAITING_CLUSTER)


def _profiles(trace: LaunchEvents, threads: _Array, spans: Spans) -> dict[int, frozenset[object]]:
    """Return what each warp does in any block, without warps that only synchronise."""
    profiles: dict[int, set[object]] = defaultdict(set)
    for kind, deed in _DEEDS.items():
        mine = threads[threads["kind"] == kind]
        is_wgmma = (mine["kind"] == EventKind.MMA_ISSUED) & (mine["shared"] == NOTHING)
        for warp in np.unique(mine["thread"][~is_wgmma] // WARP_THREADS).tolist():
            profiles[warp].add(deed)
        for group in np.unique(mine["thread"][is_wgmma] // WARP_THREADS // WARPGROUP_WARPS):
            for member in range(WARPGROUP_WARPS):
                profiles[int(group) * WARPGROUP_WARPS + member].add(deed)
    for warp in np.unique(
        threads["thread"][threads["kind"] == EventKind.ARRIVE] // WARP_THREADS
    ).tolist():
        profiles[warp].add(EventKind.ARRIVE)
    meetings: dict[int, set[object]] = defaultdict(set)
    for warp, activity, barrier in _distinct(spans.warp, spans.activity, spans.barrier):
        kept = meetings if ACTIVITIES[activity] in _MEETINGS else profiles
        kept[warp].add((activity, thing(ACTIVITIES[activity], barrier, trace.name_of)))
    return {warp: frozenset(profiles[warp] | meetings[warp]) for warp in sorted(profiles)}


def _roles(
    profiles: dict[int, frozenset[object]], names: dict[int, str]
) -> dict[str, tuple[int, ...]]:
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for warp, profile in profiles.items():
        groups[warp // WARPGROUP_WARPS, names.get(warp), profile].append(warp)
    return {role_and_warps(names.get(warps[0]), warps): tuple(warps) for warps in groups.values()}


def _role_names(trace: LaunchEvents) -> dict[int, str]:
    """Return the role of each warp; a warp with another role in another block has both."""
    roles: dict[int, dict[str, None]] = defaultdict(dict)
    for (_, _, warp), role in sorted(trace.roles.items()):
        roles[warp][role] = None
    return {warp: " or ".join(names) for warp, names in roles.items()}


def _distinct(*columns: _Array) -> Iterator[list[int]]:
    """Yield the distinct rows."""
    if len(columns[0]):
        yield from np.unique(np.stack(columns), axis=1).T.tolist()


# --- shares -----------------------------------------------------------------------------------


def _shares(
    trace: LaunchEvents, spans: Spans, warps: tuple[int, ...], time: int, names: _Names
) -> list[Share]:
    """Return the shares of one role, the largest first; ``time`` is the sum over all blocks."""
    mine = spans.where(np.isin(spans.warp, warps))
    barriers: dict[tuple[int, str], list[int]] = defaultdict(list)
    for activity, barrier in _distinct(mine.activity, mine.barrier):
        on = thing(ACTIVITIES[activity], barrier, trace.name_of)
        barriers[activity, on].append(barrier)
    shares = []
    for (activity, on), offsets in barriers.items():
        chosen = mine.where((mine.activity == activity) & np.isin(mine.barrier, offsets))
        lengths = chosen.end - chosen.begin
        shares.append(
            Share(
                activity=ACTIVITIES[activity],
                on=on,
                whom=_whom(trace, ACTIVITIES[activity], offsets, names),
                share=chosen.covered / (time * len(warps)) if time else 0.0,
                count=len(chosen),
                mean=float(lengths.mean()),
                longest=int(lengths.max()),
            )
        )
    return sorted(shares, key=lambda share: -share.share)


def _whom(
    trace: LaunchEvents, activity: Activity, offsets: list[int], names: _Names
) -> tuple[str, ...]:
    """Return the roles that arrive on mbarriers."""
    if activity in (*_MEETINGS, Activity.WAITING_SIGNAL) or offsets == [NOTHING]:
        return ()
    events = trace.events
    arrive = (events["kind"] == EventKind.ARRIVE) & np.isin(events["barrier"], offsets)
    warps = np.unique(events["thread"][arrive & (events["thread"] != NOBODY)] // WARP_THREADS)
    return tuple(dict.fromkeys(names[warp] for warp in warps.tolist() if warp in names))
