"""Traces in the trace-event format that Chrome and Perfetto open.

A process is a block. Its threads are the warps, then the stages of its pipelines. Each warp has one
thread for waits and loads, one for wgmma and one for stores, and more where spans overlap. A step
of the emulator's scheduler is drawn as a microsecond, a nanosecond of the GPU as one nanosecond.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tmaasync.trace.events import NOTHING, EventKind, offset_name
from tmaasync.trace.lanes import Activity, Lane, LaneSpan, find_lanes, packed
from tmaasync.trace.launch import LaunchEvents
from tmaasync.trace.pipelines import Pipeline, StageState, find_pipelines

_Record = dict[str, Any]
_Track = tuple[int, int]  # pid, tid
_Block = tuple[int, int, int]
_MICROSECONDS = {"step": 1, "ns": 1e-3}


def trace_document(traces: Sequence[LaunchEvents]) -> dict[str, Any]:
    """Return the JSON object of the launches, one after the other in time.

    Launches that ran together on several devices have a clock in common.
    """
    records: list[_Record] = []
    pids, flows = itertools.count(1), itertools.count(1)
    began: float = 0
    for together in _by_clock(traces):
        for trace in together:
            records += _launch(trace, began, pids, flows)
        end = max((trace.end for trace in together), default=0)
        began += (end + 1) * _MICROSECONDS[together[0].unit]
    return {
        "traceEvents": records,
        "displayTimeUnit": "ns" if any(trace.unit == "ns" for trace in traces) else "ms",
        "otherData": {"kernels": [trace.kernel_name for trace in traces]},
    }


def _by_clock(traces: Sequence[LaunchEvents]) -> list[list[LaunchEvents]]:
    """Group launches that follow each other on several devices, as far as time goes on."""
    groups: list[list[LaunchEvents]] = []
    ends: dict[int, int] = {}  # of each device or rank in the last group
    for trace in traces:
        if trace.peer is None:
            groups.append([trace])
            ends = {}
            continue
        begin = int(trace.events["time"].min(initial=trace.end))
        if not ends or begin <= ends.get(trace.peer, -1) or trace.unit != groups[-1][-1].unit:
            groups.append([])
            ends = {}
        groups[-1].append(trace)
        ends[trace.peer] = trace.end
    return groups


def _launch(
    trace: LaunchEvents, began: float, pids: Iterator[int], flows: Iterator[int]
) -> Iterator[_Record]:
    for cluster in trace.by_cluster():
        loads: dict[int, _Issue] = {}
        stages: dict[tuple[_Block, int], _Track] = {}
        for block in cluster.blocks:
            process = _Process(cluster, block, next(pids), began)
            yield from process.records()
            loads |= process.loads
            stages |= process.stages
        yield from _flows(cluster, began, loads, stages, flows)


@dataclass(frozen=True, slots=True)
class _Issue:
    track: _Track
    time: int


@dataclass(slots=True)
class _Process:
    """One block of one launch, and the tracks on which its loads and its stages are drawn."""

    trace: LaunchEvents
    block: _Block
    pid: int
    began: float
    loads: dict[int, _Issue] = field(default_factory=dict)
    stages: dict[tuple[_Block, int], _Track] = field(default_factory=dict)
    _tids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def records(self) -> Iterator[_Record]:
        """Yield all records but flows, which connect blocks."""
        place = f"{self.trace.peer_label}: " if self.trace.peer_label else ""
        name = f"{place}{self.trace.kernel_name} {self.block}"
        yield _metadata("process_name", self.pid, 0, name=name)
        yield _metadata("process_sort_index", self.pid, 0, sort_index=self.pid)
        pipelines = find_pipelines(self.trace, block=self.block)
        for lane in find_lanes(self.trace, block=self.block, pipelines=pipelines, alike=False):
            yield from self._lane(lane)
        for pipeline in pipelines:
            yield from self._ring(pipeline)
            yield from self._counter(pipeline)

    def _lane(self, lane: Lane) -> Iterator[_Record]:
        names = _buffer_names(self.trace)
        loads = {
            LaneSpan(
                Activity.LOADING, time, time + 1, f"load {sequence}{names[sequence]}"
            ): sequence
            for time, sequence in lane.loads
        }
        for name, spans in _threads(lane, loads):
            track = self.pid, next(self._tids)
            yield from _thread_metadata(track, name)
            for span in spans:
                yield from self._bar(track, span.begin, span.end, span.name, span.activity.value)
                if span in loads:
                    self.loads[loads[span]] = _Issue(track, span.begin)

    def _ring(self, pipeline: Pipeline) -> Iterator[_Record]:
        for index, stage in enumerate(pipeline.stages):
            track = self.pid, next(self._tids)
            self.stages[pipeline.block, stage.full] = track
            yield from _thread_metadata(track, pipeline.stage_name(index))
            for span in stage.spans:
                yield from self._bar(
                    track, span.begin, span.end, span.state.value, "stage", phase=span.phase
                )

    def _counter(self, pipeline: Pipeline) -> Iterator[_Record]:
        """Yield the number of full stages at every change."""
        changes: dict[int, int] = {0: 0}
        for span in (span for stage in pipeline.stages for span in stage.spans):
            if span.state is StageState.FULL:
                changes[span.begin] = changes.get(span.begin, 0) + 1
                changes[span.end] = changes.get(span.end, 0) - 1
        full = 0
        for time in sorted(changes):
            full += changes[time]
            name = f"{pipeline.name}: full stages"
            yield self._record("C", (self.pid, 0), time, name=name, args={"stages": full})

    def _bar(
        self, track: _Track, begin: int, end: int, name: str, category: str, **args: int
    ) -> Iterator[_Record]:
        yield self._record("B", track, begin, name=name, cat=category, args=args)
        yield self._record("E", track, end, name=name, cat=category)

    def _record(self, phase: str, track: _Track, time: int, **more: Any) -> _Record:
        return _timed(phase, track, self.began + time * _MICROSECONDS[self.trace.unit], **more)


def _buffer_names(trace: LaunchEvents) -> dict[int, str]:
    """Return the name of the buffer that each load fills, as in ``: ring.stages[2].a``."""
    loads = trace.of(kind=EventKind.LOAD_ISSUED).events
    named = ((offset, trace.name_of(offset)) for offset in np.unique(loads["shared"]).tolist())
    names = {offset: "" if name == offset_name(offset) else f": {name}" for offset, name in named}
    pairs = zip(loads["sequence"].tolist(), loads["shared"].tolist(), strict=True)
    return {sequence: names[offset] for sequence, offset in pairs}


def _threads(lane: Lane, loads: Iterable[LaneSpan]) -> Iterator[tuple[str, tuple[LaneSpan, ...]]]:
    """Yield names and spans of a lane's threads: waits and loads, MMAs, stores."""
    work = (Activity.COMPUTING, Activity.STORING)
    others = [span for span in lane.spans if span.activity not in work]
    mmas = [span for span in lane.spans if span.activity is work[0]]
    for name, spans in (
        (lane.name, (*others, *loads)),
        (f"{lane.name}: {mmas[0].name if mmas else ''}", mmas),
        (f"{lane.name}: stores", (one for one in lane.spans if one.activity is work[1])),
    ):
        for row, of_row in enumerate(packed(spans), 1):
            yield name if row == 1 else f"{name} ({row})", of_row


def _flows(
    trace: LaunchEvents,
    began: float,
    loads: dict[int, _Issue],
    stages: dict[tuple[_Block, int], _Track],
    numbers: Iterator[int],
) -> Iterator[_Record]:
    """Yield one flow per landing; a multicast load has one per target."""
    for landing in trace.of(kind=EventKind.LOAD_LANDED).events.tolist():
        fields = dict(zip(trace.events.dtype.names or (), landing, strict=True))
        issue = loads.get(fields["sequence"])
        home = trace.block_at(fields["cluster"], fields["other"])
        track = stages.get((home, fields["barrier"]))
        if issue is None or track is None or fields["sequence"] == NOTHING:
            continue
        names = {"name": "load", "cat": "load", "id": next(numbers)}
        unit = _MICROSECONDS[trace.unit]
        yield _timed("s", issue.track, began + issue.time * unit, **names)
        yield _timed("f", track, began + fields["time"] * unit, bp="e", **names)


def _timed(phase: str, track: _Track, time: float, **more: Any) -> _Record:
    return {"ph": phase, "pid": track[0], "tid": track[1], "ts": time, **more}


def _thread_metadata(track: _Track, name: str) -> Iterator[_Record]:
    yield _metadata("thread_name", *track, name=name)
    yield _metadata("thread_sort_index", *track, sort_index=track[1])


def _metadata(kind: str, pid: int, tid: int, **args: object) -> _Record:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}
