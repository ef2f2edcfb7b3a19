"""Launches that wait in the queues of several emulated devices, and run together."""

from __future__ import annotations

import contextvars
import ctypes
import functools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tmaasync.emulate import abi
from tmaasync.emulate.abi import Interleaving
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.program import heeding_signals, taken_report
from tmaasync.emulate.launch.last_verdict import EndedLaunch, RunNotes, keep_launches
from tmaasync.emulate.launch.notes import heed_notes
from tmaasync.emulate.launch.parameters import PackedArguments, Parameters
from tmaasync.emulate.launch.recording import Recording, TracedTo
from tmaasync.emulate.launch.repeated import RepeatedLaunch, current_explorer
from tmaasync.emulate.launch.schedule import Schedule, current_schedule
from tmaasync.emulate.report.errors import error_of
from tmaasync.emulate.report.words import Facts


class StreamQueue(NamedTuple):
    """A stream of an emulated device, whose launches run in order."""

    device: int
    stream: Hashable = 0


@dataclass(frozen=True, slots=True)
class QueuedLaunch:
    """A launch that waits in a queue, with its arguments as they were when it was queued."""

    queue: StreamQueue
    facts: Facts
    parameters: Parameters
    arguments: PackedArguments
    recording: Recording | None
    keep: object

    def scheduled(self, schedule: Schedule) -> QueuedLaunch:
        """Return the launch as it was queued, under another schedule."""
        facts = self.facts
        parameters = Parameters.of(
            facts.program,
            facts.config,
            schedule,
            self.parameters.extents,
            self.arguments.pointers_to_arrays,
        )
        if self.recording is not None:
            self.recording.start(parameters.numbers)
        return replace(self, parameters=parameters)

    def hand_over(self, begin: TracedTo) -> TracedTo:
        """Give the trace to its collector, and return the end of the traces so far."""
        return begin if self.recording is None else self.recording.hand_over(begin)


class LaunchQueue(Protocol):
    """The launch queue of a world of several devices."""

    def add(self, launch: QueuedLaunch) -> None:
        """Append a launch to the queue of its device."""

    def memory_of(self, device: int) -> tuple[dict[str, Extent], dict[str, Extent]]:
        """Return the arrays that a device may access, and others, each with a name for reports."""


WORLD: contextvars.ContextVar[LaunchQueue | None] = contextvars.ContextVar(
    "tmaasync world", default=None
)


def run_together(launches: Sequence[QueuedLaunch], begin: TracedTo) -> TracedTo:
    """Run the queues of several devices, interleaved, to their end; or let an explorer run them."""
    explorer = current_explorer()
    if explorer is None:
        return _run_once(launches, begin).end
    ends = [begin]

    def run(interleaving: Interleaving | None, undo: abi.UndoLog) -> RunNotes:
        again = [one.scheduled(current_schedule()) for one in launches]
        again[0].parameters.repeat(interleaving, undo)
        ended = _run_once(again, begin)
        ends.append(ended.end)
        return ended.notes

    explorer.explore(
        RepeatedLaunch([(one.facts.program, one.facts.config) for one in launches], run)
    )
    return TracedTo(*map(max, zip(*ends, strict=True)))


class _EndedRun(NamedTuple):
    """The end of the traces, and the notes of all launches of a run."""

    end: TracedTo
    notes: RunNotes


def _run_once(launches: Sequence[QueuedLaunch], begin: TracedTo) -> _EndedRun:
    queues: dict[StreamQueue, int] = {}
    given = (abi.DeviceLaunch * len(launches))(
        *(
            abi.DeviceLaunch(
                ctypes.cast(one.facts.program.library.tmaasync_emulate_call, ctypes.c_void_p),
                ctypes.pointer(one.parameters.numbers),
                ctypes.cast(one.arguments.pointers, ctypes.c_void_p),
                one.queue.device,
                queues.setdefault(one.queue, len(queues)),
            )
            for one in launches
        )
    )
    runtime = launches[0].facts.program.runtime
    run = runtime.tmaasync_emulate_launch_together
    began = time.perf_counter()
    try:
        report = heeding_signals(run, ctypes.c_uint32(len(launches)), given)
    finally:
        seconds = time.perf_counter() - began
        ends = [one.hand_over(begin) for one in launches]
    notes = [one.parameters.run_notes() for one in launches]
    for one in launches:
        if one.parameters.has_notes:
            heed_notes(one.facts, one.parameters, one.keep)
    error = None
    if report:
        with taken_report(runtime, report) as taken:
            error = error_of([one.facts for one in launches], taken)
    keep_launches(
        EndedLaunch(one.facts.program.name, one.parameters.schedule, note, error, seconds)
        for one, note in zip(launches, notes, strict=True)
    )
    if error is not None:
        raise error
    for one in launches:
        if one.parameters.wrote_read_only:
            one.arguments.refuse_written(one.parameters.written())
    end = TracedTo(*map(max, zip(*ends, strict=True)))
    return _EndedRun(end, functools.reduce(RunNotes.joined, notes))
