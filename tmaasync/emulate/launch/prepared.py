"""Launches on the CPU: threads run as fibers, and clusters are spread over the cores."""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from tmaasync._collectors import CollectorOf, current_collector
from tmaasync._driver import LaunchConfig
from tmaasync._forks import Lock
from tmaasync.emulate.abi import Interleaving, UndoLog
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.program import EmulatedProgram, heeding_signals, taken_report
from tmaasync.emulate.launch.last_verdict import EndedLaunch, RunNotes, keep_launches
from tmaasync.emulate.launch.notes import heed_notes
from tmaasync.emulate.launch.observed import current_launch_observer
from tmaasync.emulate.launch.parameters import (
    LaunchBefore,
    PackedArguments,
    Parameters,
    launch_before,
)
from tmaasync.emulate.launch.queued import WORLD, LaunchQueue, QueuedLaunch, StreamQueue
from tmaasync.emulate.launch.recording import Recording
from tmaasync.emulate.launch.repeated import RepeatedLaunch, current_explorer
from tmaasync.emulate.launch.schedule import Schedule, current_schedule
from tmaasync.emulate.report.errors import error_of
from tmaasync.emulate.report.words import Facts
from tmaasync.errors import LaunchError, TMAError

_MAKING = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedRun:
    """One launch that ended well."""

    schedule: Schedule
    seconds: float


class EmulatedLaunch:
    """A launch on host memory whose arguments are packed; the twin of `PreparedLaunch`."""

    __slots__ = (
        "_arguments", "_collector_of", "_config", "_keep", "_own_lock", "_program", "_queue",
        "_rank", "_ready", "_require_current", "_world", "last_run",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - the parts of a launch
        self,
        program: EmulatedProgram,
        config: LaunchConfig,
        arguments: Sequence[bytes],
        keep: object,
        arrays: Sequence[Iterable[Extent]],
        collector_of: CollectorOf = current_collector,
        queue: StreamQueue | None = None,
        rank: int | None = None,
        require_current: Callable[[], None] | None = None,
    ) -> None:
        """Pack the arguments, without running.

        ``arrays`` holds the extents of each argument's arrays. ``collector_of`` returns the trace
        collector at each call. Inside an emulated world the launch waits in a ``queue``, and a
        launch with signals has a ``rank``. Each call without addresses calls ``require_current``.
        """
        self._require_current = require_current
        self._queue = queue
        self._world = None if queue is None else WORLD.get()
        self._rank = rank
        self._collector_of = collector_of
        self._program = program
        self._config = config
        self._keep = keep
        self._arguments = PackedArguments(arguments, arrays)
        self._own_lock: Lock | None = None
        self._ready: Parameters | None = None
        self.last_run: EmulatedRun | None = None

    def __call__(self) -> None:
        """Run the kernel to its end; inside `devices`, put the launch into its device's queue.

        Raises:
            EmulatedDeadlock: All remaining threads wait, and nothing is in flight.
            EmulatedRace: Two accesses to the same bytes are unordered.
            EmulatedFault: A thread did something that ends a kernel on the chip, or is illegal.
            EmulatedTimeout: The schedule's budget was spent without progress.
            BaseException: Whatever a signal handler of Python raises meanwhile, such as
                KeyboardInterrupt at Ctrl-C.
            LaunchError: The launch is too large for this machine or for the schedule, or it
                wrote to a read-only array.
            StaleTileError: An array was freed, resized or moved since the launch was prepared.
        """
        if self._require_current is not None:
            self._require_current()
        self._run(self._queue)

    def release(self) -> None:
        """Keep no array alive; every call passes the addresses."""
        self._keep = self._require_current = None

    def bind(self, addresses: Sequence[int], stream: Hashable) -> Callable[[], None]:
        """Return a bound call of `launch_at` with these arguments."""
        return functools.partial(self.launch_at, addresses, stream)

    def launch_at(self, addresses: Sequence[int], stream: Hashable) -> None:
        """Run with other addresses for the first arguments (tiles or pointers).

        Inside `devices` the launch goes into the stream's queue. It is thread-safe.

        Raises:
            LaunchError: A signal handler repeats the launch that it interrupts.
        """
        queue = None if self._queue is None else self._queue._replace(stream=stream)
        with self._lock() as lock:
            if lock.depth > 1:
                raise LaunchError(
                    f"{self._program.name} runs in this thread with other arrays, and a signal "
                    "handler launches it again. Launch it after the handler, or in a thread."
                )
            self._arguments.write(addresses)
            self._run(queue)

    def _lock(self) -> Lock:
        """Return the lock of the arguments, which direct calls of a kernel do not need."""
        with _MAKING:
            if self._own_lock is None:
                self._own_lock = Lock()
            return self._own_lock

    def _run(self, queue: StreamQueue | None) -> None:
        observer = current_launch_observer()
        if observer is None:
            self._run_or_queue(queue)
            return
        try:
            self._run_or_queue(queue)
        except Exception as error:
            observer(self._program.name, error)
            raise
        observer(self._program.name, None)

    def _run_or_queue(self, queue: StreamQueue | None) -> None:
        explorer = current_explorer()
        if queue is not None:
            world = self._open_world()
            world.add(self._queued(world, queue))
        elif explorer is not None:
            explorer.explore(RepeatedLaunch([(self._program, self._config)], self._run_now))
        else:
            self._run_now()

    def _run_now(
        self, interleaving: Interleaving | None = None, undo: UndoLog | None = None
    ) -> RunNotes:
        program, ready, recording = self._program, self._ready_parameters(), self._recording()
        before = launch_before()
        ready.start(pdl=self._config.pdl)
        ready.numbers.log = None
        ready.repeat(interleaving, undo)
        if recording is not None:
            recording.start(ready.numbers)
        launch, call = (
            program.runtime.tmaasync_emulate_launch,
            program.library.tmaasync_emulate_call,
        )
        numbers, pointers = ctypes.byref(ready.numbers), self._arguments.pointers
        began = time.perf_counter()
        try:
            report = heeding_signals(launch, call, numbers, pointers)
        finally:
            seconds = time.perf_counter() - began
            ready.keep_written(program, self._arguments.arrays)
            if recording is not None:
                recording.hand_over()
        notes = ready.run_notes()
        if ready.has_notes:
            heed_notes(self._facts(ready, self._arguments), ready, self._keep)
        error = self._error_of(report, ready, before) if report else None
        keep_launches([EndedLaunch(program.name, ready.schedule, notes, error, seconds)])
        if error is not None:
            raise error
        if ready.wrote_read_only:
            self._arguments.refuse_written(ready.written())
        self._ready = ready
        self.last_run = EmulatedRun(schedule=ready.schedule, seconds=seconds)
        return notes

    def _error_of(self, report: int, ready: Parameters, before: LaunchBefore | None) -> TMAError:
        facts = replace(
            self._facts(ready, self._arguments), before=before and (before.program, before.arrays)
        )
        with taken_report(self._program.runtime, report) as taken:
            return error_of([facts], taken)

    def _ready_parameters(self) -> Parameters:
        """Return the launch's parameters: the last call's, unless they changed or are in use.

        Reuse saves a third of the time of a one-thread launch (benchmarks/bench_emulate.py).
        """
        schedule = current_schedule()
        ready, self._ready = self._ready, None
        extents = self._arguments.extents()
        if ready is not None and ready.schedule is schedule and ready.extents == extents:
            return ready
        pointers = self._arguments.pointers_to_arrays
        return Parameters.of(self._program, self._config, schedule, extents, pointers)

    def _recording(self) -> Recording | None:
        collector = self._collector_of()
        if collector is None:
            return None
        device = None if self._queue is None else self._queue.device
        return Recording(collector, self._program, self._config, device, self._rank)

    def _open_world(self) -> LaunchQueue:
        world = self._world
        if world is None or world is not WORLD.get():
            raise LaunchError(
                "the launch was prepared inside emulate.devices, and its world has ended or was "
                "opened by another thread. Call it inside the with, in the same thread."
            )
        return world

    def _queued(self, world: LaunchQueue, queue: StreamQueue) -> QueuedLaunch:
        """Return a snapshot of the launch, because its arguments may change before it runs."""
        arguments, recording = self._arguments.snapshot(), self._recording()
        extents = arguments.extents()
        memory, beyond = world.memory_of(queue.device)
        others = _only_by_pointers(memory, extents, arguments.words())
        # A pointer to an array of no bytes leads nowhere.
        nowhere = (one._replace(end=0) for one in beyond.values())
        extents += (*others.values(), *nowhere)
        pointers, schedule = arguments.pointers_to_arrays, current_schedule()
        parameters = Parameters.of(self._program, self._config, schedule, extents, pointers)
        if recording is not None:
            recording.start(parameters.numbers)
        facts = self._facts(parameters, arguments, others | beyond)
        return QueuedLaunch(queue, facts, parameters, arguments, recording, self._keep)

    def _facts(
        self,
        parameters: Parameters,
        arguments: PackedArguments,
        others: dict[str, Extent] | None = None,
    ) -> Facts:
        budget_seconds, size = parameters.schedule.budget_seconds, str(parameters.size)
        device = None if self._queue is None else self._queue.device
        return Facts(
            self._program,
            self._config,
            budget_seconds,
            size,
            arguments.arrays,
            others or {},
            device,
        )


def _only_by_pointers(
    memory: dict[str, Extent], extents: list[Extent], words: Iterable[int]
) -> dict[str, Extent]:
    """Return the arrays that are not arguments: a kernel reaches them by pointers in others.

    Of an array with arguments in it, these are the parts between them to which a word leads.
    """
    pointers, found = sorted(words), {}
    taken = sorted((one.span.start, one.span.stop) for one in extents)
    for name, one in memory.items():
        first, last = one.span.start, one.span.stop
        within = [side for side in taken if side[0] < last and first < side[1]]
        if not within:
            found[name] = one
            continue
        begins = itertools.accumulate([first, *(end for _, end in within)], max)
        ends = [*(begin for begin, _ in within), last]
        for begin, end in zip(begins, ends, strict=True):
            leading = bisect.bisect_left(pointers, begin)
            if leading < len(pointers) and pointers[leading] < end:
                part = f"{name[:-1]} from byte {begin - one.address})"
                found[part] = Extent(begin, 0, end - begin, may_hold_pointers=one.may_hold_pointers)
    return found
