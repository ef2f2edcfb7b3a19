"""The pipelines of a launch, found in its events: barriers, buffers, and the state of each stage.

A barrier to which loads credit bytes is a full barrier, and each full barrier is a stage. Its
buffers are the targets of these loads. Its empty barrier is the one on which the producer waits
just before it expects the bytes. Without one, a store that reads the buffer empties the stage.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tmaasync._source.names import element_of, ring_part
from tmaasync.trace.events import NOBODY, NOTHING, EventKind, NameOf, offset_name
from tmaasync.trace.launch import LaunchEvents, check_trace


class StageState(enum.Enum):
    """The state of a stage.

    ``FILLING`` from the announcement of the bytes, or the first load, to the completion of the full
    barrier's phase; ``FULL`` until the first consumer passes its wait; ``READING`` until the phase
    of the empty barrier completes, or TMA has read the buffers for a store. On the GPU the end of a
    phase is seen only by a thread that waits: ``LOADED`` is both, filling and then full, until the
    first consumer passes.
    """

    EMPTY = "empty"
    FILLING = "filling"
    LOADED = "filling, then full"
    FULL = "full"
    READING = "being read"


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stage is in one state from ``begin`` to before ``end``, for one phase of its barrier."""

    state: StageState
    begin: int
    end: int
    phase: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a pipeline: its barriers and buffers by offset, and its history.

    ``spans`` leaves out when the stage is empty.
    """

    full: int
    empty: int | None
    buffers: tuple[int, ...]
    spans: tuple[StageSpan, ...]

    def state_at(self, time: int) -> StageState:
        """Return the state of the stage at a time."""
        last = bisect.bisect_right(self.spans, time, key=lambda span: span.begin) - 1
        if last < 0 or time >= self.spans[last].end:
            return StageState.EMPTY
        return self.spans[last].state


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages that one thread fills in order, as a ring buffer, in one block (x, y, z).

    ``name`` is the ring in the source, such as ``ring_k``; without a ring the array of its full
    barriers, or a number.
    """

    name: str
    block: tuple[int, int, int]
    stages: tuple[Stage, ...]

    def stage_name(self, index: int) -> str:
        """Return the name of a stage: ``ring_k, stage 2``, ``full[2]``."""
        if len(self.stages) == 1:
            return self.name
        is_array = ring_part(f"{self.name}[0]") is not None
        return f"{self.name}[{index}]" if is_array else f"{self.name}, stage {index}"

    def count(self, state: StageState, time: int) -> int:
        """Count the stages in this state at a time."""
        return sum(stage.state_at(time) is state for stage in self.stages)


def find_pipelines(
    trace: LaunchEvents, *, block: int | Sequence[int] | None = None
) -> tuple[Pipeline, ...]:
    """Return the pipelines of one block or of all, in the order in which they are first filled."""
    check_trace(trace)
    wanted = None if block is None else trace.block_index(block)
    pipelines: list[Pipeline] = []
    of_interest = trace if wanted is None else trace.of(cluster=trace.cluster_of(wanted))
    for cluster in of_interest.by_cluster():
        issues = _issue_times(cluster.events)
        for here in cluster.blocks:
            if wanted is None or trace.block_index(here) == wanted:
                histories = _histories(cluster.of(block=here).events, issues)
                pipelines.extend(_grouped(histories, cluster.end, here, trace.name_of))
    return tuple(pipelines)


def _issue_times(events: np.ndarray[Any, Any]) -> dict[int, int]:
    issued = events[events["kind"] == EventKind.LOAD_ISSUED]
    return dict(zip(issued["sequence"].tolist(), issued["time"].tolist(), strict=True))


# --- one full barrier -------------------------------------------------------------------------

_Times = dict[int, int]


@dataclass(slots=True)
class _History:
    """History of one full barrier, by phase, and of the buffers that it guards."""

    full: int
    empty: int | None = None
    loader: tuple[int, int] = (0, NOBODY)
    buffers: dict[int, None] = field(default_factory=dict)
    expected: _Times = field(default_factory=dict)
    issued: _Times = field(default_factory=dict)
    completed: _Times = field(default_factory=dict)
    waited: _Times = field(default_factory=dict)
    emptied: list[int] = field(default_factory=list)
    stores: list[tuple[int, int]] = field(default_factory=list)

    def spans(self, end: int) -> Iterator[StageSpan]:
        """Yield every phase as filling, full, being read."""
        begins = self._begins(end)
        for (phase, begin), (_, following) in zip(begins, (*begins[1:], (0, end)), strict=True):
            is_unseen = phase in self.waited and phase not in self.completed
            full = self.waited[phase] if is_unseen else self.completed.get(phase, following)
            read = max(full, self.waited.get(phase, following))
            over = self._emptied(read if phase in self.waited else full, following)
            filling = StageState.LOADED if is_unseen else StageState.FILLING
            yield from _without_nothing(
                StageSpan(filling, begin, min(full, following), phase),
                StageSpan(StageState.FULL, full, min(read, over), phase),
                StageSpan(StageState.READING, read, over, phase),
            )

    def _begins(self, end: int) -> list[tuple[int, int]]:
        """Return when each phase begins to fill.

        Bytes may be announced while the phase before is still being read; a load may not land.
        """
        begins: list[tuple[int, int]] = []
        emptied = 0
        for phase in sorted(self.expected.keys() | self.issued.keys()):
            issued = self.issued.get(phase, end)
            begin = min(issued, max(self.expected.get(phase, issued), emptied))
            begins.append((phase, begin))
            read = self.waited.get(phase, self.completed.get(phase, end))
            emptied = self._emptied(read, self.waited.get(phase + 1, end))
        return begins

    def _emptied(self, read: int, following: int) -> int:
        """Return when a stage read from ``read`` on is free, at the latest when it fills again."""
        if self.empty is not None:
            after = bisect.bisect_left(self.emptied, read)
            return min([following, *self.emptied[after : after + 1]])
        over = [done for issued, done in self.stores if read <= issued < following]
        return min(following, max(over, default=following))


def _without_nothing(*spans: StageSpan) -> Iterator[StageSpan]:
    return (span for span in spans if span.begin < span.end)


def _histories(events: np.ndarray[Any, Any], issues: _Times) -> list[_History]:
    """One history per full barrier of a block, in the order of their first loads."""
    histories: dict[int, _History] = {}
    landings = _select(events, EventKind.LOAD_LANDED)
    for landing in sorted(
        landings, key=lambda landing: issues.get(landing["sequence"], landing["time"])
    ):
        history = histories.setdefault(landing["barrier"], _History(landing["barrier"]))
        history.buffers[landing["shared"]] = None
        _earliest(
            history.issued, landing["phase"], issues.get(landing["sequence"], landing["time"])
        )
    _read_loads_under_way(events, histories)
    _read_phases(events, histories)
    _read_loaders(events, histories)
    _read_releases(events, histories)
    return list(histories.values())


def _read_loads_under_way(events: np.ndarray[Any, Any], histories: dict[int, _History]) -> None:
    """Read issued loads, landed or not: without a landing, use the issuer's phase."""
    for load in _select(events, EventKind.LOAD_ISSUED):
        if load["barrier"] == NOTHING or load["other"] != load["rank"]:
            continue
        history = histories.setdefault(load["barrier"], _History(load["barrier"]))
        history.buffers.setdefault(load["shared"])
        _earliest(history.issued, load["phase"], load["time"])


def _read_phases(events: np.ndarray[Any, Any], histories: dict[int, _History]) -> None:
    columns = {
        EventKind.EXPECT: "expected",
        EventKind.PHASE_COMPLETED: "completed",
        EventKind.WAIT_END: "waited",
    }
    for event in _select(events, *columns):
        history = histories.get(event["barrier"])
        if history is not None and event["other"] == event["rank"]:
            times = getattr(history, columns[EventKind(event["kind"])])
            _earliest(times, event["phase"], event["time"])


def _read_loaders(events: np.ndarray[Any, Any], histories: dict[int, _History]) -> None:
    """Find the thread that fills each stage, and the barrier that it waits on just before."""
    kinds = (EventKind.WAIT_END, EventKind.EXPECT, EventKind.LOAD_ISSUED)
    waited: dict[int, int | None] = {}
    votes: dict[int, Counter[int | None]] = defaultdict(Counter)
    for event in _select(events, *kinds):
        thread, barrier = event["thread"], event["barrier"]
        if event["kind"] == EventKind.WAIT_END:
            if barrier != NOTHING:
                waited[thread] = barrier
            continue
        if barrier in histories:
            histories[barrier].loader = (event["rank"], thread)
            votes[barrier][waited.pop(thread, None)] += 1
    for barrier, found in votes.items():
        candidates = [name for name, _ in found.most_common() if name not in (None, *histories)]
        histories[barrier].empty = next(iter(candidates), None)


def _read_releases(events: np.ndarray[Any, Any], histories: dict[int, _History]) -> None:
    """Find when empty barriers complete, and when stores out of the buffers have read them."""
    by_empty = {history.empty: history for history in histories.values()}
    by_buffer = {buffer: history for history in histories.values() for buffer in history.buffers}
    stores: dict[int, tuple[_History, int]] = {}
    kinds = (EventKind.PHASE_COMPLETED, EventKind.STORE_ISSUED, EventKind.STORE_READ)
    for event in _select(events, *kinds):
        if event["kind"] == EventKind.PHASE_COMPLETED:
            if event["barrier"] in by_empty:
                by_empty[event["barrier"]].emptied.append(event["time"])
        elif event["kind"] == EventKind.STORE_ISSUED:
            if event["shared"] in by_buffer:
                stores[event["sequence"]] = by_buffer[event["shared"]], event["time"]
        elif event["sequence"] in stores:
            history, issued = stores.pop(event["sequence"])
            history.stores.append((issued, event["time"]))


def _select(events: np.ndarray[Any, Any], *kinds: EventKind) -> list[dict[str, int]]:
    chosen = events[np.isin(events["kind"], kinds)]
    names = chosen.dtype.names or ()
    columns = [chosen[name].tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _earliest(times: _Times, phase: int, time: int) -> None:
    times[phase] = min(time, times.get(phase, time))


# --- stages to pipelines --------------------------------------------------------------------------


def _grouped(
    histories: list[_History], end: int, block: tuple[int, int, int], name_of: NameOf
) -> Iterator[Pipeline]:
    for number, group in enumerate(_groups(histories, name_of)):
        stages = (
            Stage(
                full=history.full,
                empty=history.empty,
                buffers=tuple(history.buffers),
                spans=tuple(history.spans(end)),
            )
            for history in sorted(group, key=lambda history: history.full)
        )
        name = _pipeline_name(group, number, name_of)
        yield Pipeline(name=name, block=block, stages=tuple(stages))


def _groups(histories: list[_History], name_of: NameOf) -> Iterable[list[_History]]:
    """Group histories of one array by name, and nameless ones that are filled in order."""
    groups: list[list[_History]] = []
    arrays: dict[str, list[_History]] = {}
    for history in histories:
        array = _array_name(name_of(history.full))
        if array is not None:
            group = arrays.setdefault(array, [])
            groups += [] if group else [group]
            group.append(history)
        elif groups and _goes_on(groups[-1], history):
            groups[-1].append(history)
        else:
            groups.append([history])
    return groups


def _pipeline_name(group: list[_History], number: int, name_of: NameOf) -> str:
    """Return the ring, the array of full barriers or the only barrier by its name, or a number."""
    name = name_of(group[0].full)
    if name == offset_name(group[0].full):
        return f"pipeline {number}"
    part = ring_part(name)
    if part is not None and part.ring and part.member == "full":
        return part.ring
    return _array_name(name) or name


def _array_name(name: str) -> str | None:
    found = element_of(name)
    return found[0] if found else None


def _goes_on(pipeline: list[_History], history: _History) -> bool:
    """True if the stage is the next of this pipeline: same loader, and barriers at one distance."""
    last = pipeline[-1]
    distance = history.full - last.full
    wanted = pipeline[1].full - pipeline[0].full if len(pipeline) > 1 else distance
    return (
        distance == wanted > 0
        and history.loader == last.loader
        and len(history.buffers) == len(last.buffers)
        and (history.empty is None) == (last.empty is None)
    )
