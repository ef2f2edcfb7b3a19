"""Launches on the CPU: threads run as fibers, and clusters are spread over the cores."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import os
import signal
import struct
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tmaasync._collectors import CollectorOf, TraceCollector, current_collector
from tmaasync._driver import BLANK_BYTES, LaunchConfig, blank_address
from tmaasync._forks import Lock
from tmaasync._kinds import is_number, is_one_of, not_flags, not_integers, shown
from tmaasync.emulate import abi
from tmaasync.emulate.extents import Extent, refuse_written
from tmaasync.emulate.frontend.cpp.build import EmulatedProgram
from tmaasync.emulate.launch.estimate import LaunchEstimate, estimate
from tmaasync.emulate.launch.interpreter import (
    heeding_signals,
    is_main_thread,
    take_bytes,
    taken_report,
)
from tmaasync.emulate.report.errors import Facts, error_of, error_of_several, shared_names
from tmaasync.errors import ArgumentError, LaunchError
from tmaasync.trace.events import EVENT_DTYPE, NOTHING, SIGNAL_KINDS
from tmaasync.trace.roles import ROLE_DTYPE, warp_roles
from tmaasync.trace.trace import Trace

__all__ = [
    "SEARCHED_WORDS",
    "EmulatedLaunch",
    "EmulatedRun",
    "Extent",
    "Schedule",
    "StreamQueue",
    "current_schedule",
    "is_scheduled",
    "scheduled",
]

SEARCHED_WORDS = 1 << 22
"""Words of 8 bytes whose accesses are checked for races unless the schedule decides: 0.26 s of a
core for a GEMM of 512 x 512 x 512, most of it; ten times that for one of 1024 (2026-11-22)."""

Policy = Literal["round_robin", "random", "adversarial"]
_POLICIES = {one.name.lower(): one for one in abi.Policy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The interleaving of threads and copies.

    ``round_robin`` runs threads in order, and lands copies in order and as late as possible.
    ``random`` draws both from ``seed``. ``adversarial`` draws one strategy per cluster: a warp,
    warpgroup or CTA that runs only if no other can, another one that runs as far ahead as possible,
    and copies that land at once, out of order or as late as possible. With ``random`` and
    ``adversarial``, ``try_wait`` sometimes gives up, as on the chip. The same seed replays the same
    run of each cluster.

    ``workers`` is the maximum number of clusters that run at once, by default one per core. A
    cluster that runs for ``budget_seconds`` of a core without a completed phase, a landed copy or a
    finished thread is stopped; ``math.inf`` disables the limit. A launch of more than
    ``max_threads`` threads is rejected. With ``races=True`` every memory access is checked against
    earlier ones; with None only accesses to the first `SEARCHED_WORDS` words of a launch; with
    False none. During the race search clusters run on one core, and clusters that signal each other
    through global memory are interleaved there.
    """

    policy: Policy = "round_robin"
    seed: int = 0
    workers: int | None = None
    budget_seconds: float = 10.0
    max_threads: int = 1 << 26
    races: bool | None = None

    def __post_init__(self) -> None:
        if not is_one_of(self.policy, _POLICIES):
            raise ArgumentError(
                f"policy is {shown(self.policy)}; there are {', '.join(_POLICIES)}. Pass one."
            )
        workers = {} if self.workers is None else {"workers": self.workers}
        integers = not_integers(seed=self.seed, max_threads=self.max_threads, **workers)
        flags = {} if self.races is None else {"races": self.races}
        ArgumentError.raise_for([*integers, *not_flags(**flags)])
        if self.workers is not None and self.workers < 1:
            raise ArgumentError(f"workers is {self.workers}; it must be 1 or more. Pass None.")
        if not is_number(self.budget_seconds) or not self.budget_seconds > 0:
            raise ArgumentError(
                f"budget_seconds is {shown(self.budget_seconds)}; it must be above 0. Pass "
                "math.inf to let every kernel run."
            )

    @property
    def searched_words(self) -> int:
        """The number of 8-byte words whose accesses are checked for races; 0 for none."""
        return {None: SEARCHED_WORDS, True: 2**64 - 1, False: 0}[self.races]


def _races_of_environment() -> bool | None:
    value = os.environ.get("TMAASYNC_RACES", "")
    if value not in ("", "0", "1"):
        raise ArgumentError(
            f"the environment's TMAASYNC_RACES is {value!r}; it must be 1, to check every memory "
            "access of every launch, or 0, to check none."
        )
    return bool(int(value)) if value else None


_DEFAULT = Schedule(races=_races_of_environment())
_SCHEDULE = contextvars.ContextVar("tmaasync schedule", default=_DEFAULT)


@contextlib.contextmanager
def scheduled(
    policy: Policy | None = None,
    *,
    seed: int | None = None,
    workers: int | None = None,
    budget_seconds: float | None = None,
    max_threads: int | None = None,
    races: bool | None = None,
) -> Iterator[Schedule]:
    """Interleave the launches inside the ``with`` by a `Schedule`.

    Arguments that are None keep their value from outside the ``with``.
    """
    given: dict[str, Any] = {
        "policy": policy,
        "seed": seed,
        "workers": workers,
        "budget_seconds": budget_seconds,
        "max_threads": max_threads,
        "races": races,
    }
    kept = {name: value for name, value in given.items() if value is not None}
    schedule = replace(_SCHEDULE.get(), **kept)
    token = _SCHEDULE.set(schedule)
    try:
        yield schedule
    finally:
        _SCHEDULE.reset(token)


def is_scheduled() -> bool:
    """Return whether `scheduled` applies to launches in the current context."""
    return _SCHEDULE.get() is not _DEFAULT


def current_schedule() -> Schedule:
    """Return the schedule of launches in the current context."""
    return _SCHEDULE.get()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedRun:
    """One launch that ended well."""

    schedule: Schedule
    seconds: float


class TracedTo(NamedTuple):
    """The end of a world's traces so far: the first free time and post number."""

    time: int
    posts: int


_NOT_TRACED = TracedTo(0, 0)


class EmulatedLaunch:
    """A launch on host memory whose arguments are packed; the twin of `PreparedLaunch`."""

    __slots__ = (
        "_arrays", "_buffer", "_collector_of", "_config", "_keep", "_lock", "_offsets",
        "_pointers", "_program", "_queue", "_rank", "_ready", "_require_current", "_world",
        "last_run",
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
        self._arrays = list(arrays)
        self._buffer, self._offsets = _aligned(arguments)
        self._pointers = _pointers_into(self._buffer, self._offsets)
        self._lock = Lock()
        self._ready: _Ready | None = None
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
        self._run()

    def _run(self) -> None:
        if self._queue is not None:
            world = self._queue_of_world()
            world.add(self._queued(world))
            return
        schedule, collector = _SCHEDULE.get(), self._collector_of()
        ready = self._ready_for(schedule)
        program, numbers = self._program, ready.numbers
        _start(numbers, _fresh(ready.extents) if self._config.pdl else None)
        log = None if collector is None else abi.EventLog()
        numbers.log = None if log is None else ctypes.pointer(log)
        launch = heeding_signals(program.runtime.tmaasync_emulate_launch)
        began = time.perf_counter()
        try:
            report = launch(
                program.library.tmaasync_emulate_call, ctypes.byref(numbers), self._pointers
            )
        finally:
            seconds = time.perf_counter() - began
            _WRITTEN.set((ready.extents, bytes(1) + _written(numbers)))
            if collector is not None and log is not None:
                self._hand_over(program, collector, log)
        if report:
            facts = Facts(self._config, schedule.budget_seconds, str(ready.size), self._arrays)
            with taken_report(program.runtime, report) as taken:
                raise error_of(program, facts, taken)
        refuse_written(self._arrays, _written(numbers))
        self._ready = ready
        self.last_run = EmulatedRun(schedule=schedule, seconds=seconds)

    def _ready_for(self, schedule: Schedule) -> _Ready:
        """Return the launch's parameter block: the last call's, unless it changed or is in use.

        Reuse saves a third of the time of a one-thread launch (benchmarks/bench_emulate.py).
        """
        ready, self._ready = self._ready, None
        extents = self._extents()
        if ready is not None and ready.schedule is schedule and ready.extents == extents:
            return ready
        size = self._size(schedule)
        registers = self._program.registers
        numbers = _numbers(self._config, schedule, size, extents, registers)
        return _Ready(schedule, extents, size, numbers)

    def _queue_of_world(self) -> LaunchQueue:
        world = self._world
        if world is None or world is not WORLD.get():
            raise LaunchError(
                "the launch was prepared inside emulate.devices, and its world has ended or was "
                "opened by another thread. Call it inside the with, in the same thread."
            )
        return world

    def _queued(self, world: LaunchQueue) -> QueuedLaunch:
        """Return a snapshot of the launch, because its arguments may change before it runs."""
        assert self._queue is not None  # noqa: S101 - called only inside a world
        schedule = _SCHEDULE.get()
        size = self._size(schedule)
        collector = self._collector_of()
        log = None if collector is None else abi.EventLog()
        start = _first_aligned(self._buffer)
        packed = [ctypes.string_at(start, ctypes.sizeof(self._buffer) - _ALIGNMENT)]
        buffer, _ = _aligned(packed)
        pointers = _pointers_into(buffer, self._offsets)
        extents = self._extents(_first_aligned(buffer))
        memory, beyond = world.memory_of(self._queue.device)
        others = _only_by_pointers(memory, extents)
        # A pointer to an array of no bytes leads nowhere.
        nowhere = (one._replace(end=0) for one in beyond.values())
        extents += (*others.values(), *nowhere)
        others |= beyond
        numbers = _numbers(self._config, schedule, size, extents, self._program.registers)
        numbers.log = None if log is None else ctypes.pointer(log)
        arrays = list(map(list, self._arrays))
        facts = Facts(self._config, schedule.budget_seconds, str(size), arrays, others)

        def hand_over(begin: TracedTo) -> TracedTo:
            if collector is None or log is None:
                return begin
            return self._hand_over(self._program, collector, log, begin)

        return QueuedLaunch(
            self._queue,
            self._program,
            facts,
            numbers,
            pointers,
            hand_over,
            (buffer, self._keep),
        )

    def _extents(self, start: int | None = None) -> list[Extent]:
        """Return the extents of the launch's arrays, and of arguments that may hold pointers."""
        found = [_BLANK]
        start = _first_aligned(self._buffer) if start is None else start
        ends = (*self._offsets[1:], ctypes.sizeof(self._buffer) - _ALIGNMENT)
        for first, end, each in zip(self._offsets, ends, self._arrays, strict=False):
            extents = list(each)
            found += extents or [Extent(start + first, 0, end - first, may_hold_pointers=True)]
        return found

    def _hand_over(
        self,
        program: EmulatedProgram,
        collector: TraceCollector,
        log: abi.EventLog,
        begin: TracedTo = _NOT_TRACED,
    ) -> TracedTo:
        """Give the events to the collector, even if the launch failed."""
        config = self._config
        names = shared_names(program, config.shared_bytes)
        raw = take_bytes(log.events, log.count * EVENT_DTYPE.itemsize)
        events = np.frombuffer(raw, EVENT_DTYPE).copy()
        posted = np.isin(events["kind"], SIGNAL_KINDS) & (events["sequence"] != NOTHING)
        events["time"] += np.uint64(begin.time)
        events["sequence"][posted] += np.uint32(begin.posts)
        roles = take_bytes(log.roles, log.role_count * ROLE_DTYPE.itemsize)
        trace = Trace(
            kernel_name=program.name,
            grid=config.grid,
            block=config.block,
            cluster=config.cluster or (1, 1, 1),
            events=events,
            name_of=names,
            roles=warp_roles(roles),
            device=None if self._queue is None else self._queue.device,
            rank=self._rank,
        )
        collector.take(trace)
        posts = int(events["sequence"][posted].max(initial=begin.posts)) + 1
        return TracedTo(trace.end + 1, posts)

    def _size(self, schedule: Schedule) -> LaunchEstimate:
        """Estimate the launch; raise if it is too large."""
        size = estimate(self._program, self._config, schedule.workers or _cores())
        LaunchError.raise_for(size.violations(schedule.max_threads))
        return size

    def release(self) -> None:
        """Keep no array alive; every call passes the addresses."""
        self._keep = self._require_current = None

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """Return a bound call of `launch_at` with these arguments."""
        return functools.partial(self.launch_at, addresses, stream)

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Run with other addresses for the first arguments (tiles or pointers); ignore the stream.

        It is thread-safe.

        Raises:
            LaunchError: A signal handler repeats the launch that it interrupts.
        """
        del stream
        with self._lock:
            if self._lock.depth > 1:
                raise LaunchError(
                    f"{self._program.name} runs in this thread with other arrays, and a signal "
                    "handler launches it again. Launch it after the handler, or in a thread."
                )
            self._write(addresses)
            self._run()

    def _write(self, addresses: Sequence[int]) -> None:
        start = _first_aligned(self._buffer) - ctypes.addressof(self._buffer)
        for index, (offset, address) in enumerate(zip(self._offsets, addresses, strict=False)):
            _ADDRESS.pack_into(self._buffer, start + offset, address)
            extents = tuple(self._arrays[index])
            if extents:
                first = extents[0]._replace(address=address, is_read_only=False)
                self._arrays[index] = (first, *extents[1:])


class _Ready(NamedTuple):
    """The parameters of a launch, valid while its schedule and arrays stay the same."""

    schedule: Schedule
    extents: list[Extent]
    size: LaunchEstimate
    numbers: abi.LaunchNumbers


# The memory through which ragged maps load if nothing is in bounds.
_BLANK = Extent(blank_address(None), 0, BLANK_BYTES)
_ADDRESS = struct.Struct("<Q")
_ALIGNMENT = 128


def _aligned(arguments: Sequence[bytes]) -> tuple[Any, list[int]]:
    """Return the arguments in one buffer with room to align it, and their offsets."""
    offsets, end = [], 0
    for argument in arguments:
        offsets.append(end)
        end += -(-len(argument) // _ALIGNMENT) * _ALIGNMENT
    buffer = ctypes.create_string_buffer(end + _ALIGNMENT)
    start = _first_aligned(buffer)
    for offset, argument in zip(offsets, arguments, strict=True):
        ctypes.memmove(start + offset, argument, len(argument))
    return buffer, offsets


def _first_aligned(buffer: Any) -> int:
    return -(-ctypes.addressof(buffer) // _ALIGNMENT) * _ALIGNMENT


def _pointers_into(buffer: Any, offsets: Sequence[int]) -> Any:
    """Return an array of pointers to the arguments at these offsets of an aligned buffer."""
    start = _first_aligned(buffer)
    return (ctypes.c_void_p * max(1, len(offsets)))(*(start + offset for offset in offsets))


# --- launches of several devices ----------------------------------------------------------------


class StreamQueue(NamedTuple):
    """A stream of an emulated device, whose launches run in order."""

    device: int
    stream: Hashable = None


@dataclass(frozen=True, slots=True)
class QueuedLaunch:
    """A launch that waits in a queue."""

    queue: StreamQueue
    program: EmulatedProgram
    facts: Facts
    numbers: abi.LaunchNumbers
    pointers: Any
    hand_over: Callable[[TracedTo], TracedTo]
    keep: object


class LaunchQueue(Protocol):
    """The launch queue of a world of several devices."""

    def add(self, launch: QueuedLaunch) -> None:
        """Append a launch to the queue of its device."""

    def memory_of(self, device: int) -> tuple[dict[str, Extent], dict[str, Extent]]:
        """Return the arrays that a device may access, and others, each with a name for reports."""


WORLD: contextvars.ContextVar[LaunchQueue | None] = contextvars.ContextVar(
    "tmaasync world", default=None
)


def _only_by_pointers(memory: dict[str, Extent], extents: list[Extent]) -> dict[str, Extent]:
    """Return the arrays that are not arguments: a kernel reaches them by pointers in others."""

    def overlaps(one: Extent, other: Extent) -> bool:
        return (
            one.address + one.first < other.address + other.end
            and other.address + other.first < one.address + one.end
        )

    return {
        name: one
        for name, one in memory.items()
        if not any(overlaps(one, extent) for extent in extents)
    }


def run_together(launches: Sequence[QueuedLaunch], begin: TracedTo) -> TracedTo:
    """Run the queues of several devices, interleaved, to their end."""
    queues: dict[StreamQueue, int] = {}
    given = (abi.DeviceLaunch * len(launches))(
        *(
            abi.DeviceLaunch(
                ctypes.cast(one.program.library.tmaasync_emulate_call, ctypes.c_void_p),
                ctypes.pointer(one.numbers),
                ctypes.cast(one.pointers, ctypes.c_void_p),
                one.queue.device,
                queues.setdefault(one.queue, len(queues)),
            )
            for one in launches
        )
    )
    run = heeding_signals(launches[0].program.runtime.tmaasync_emulate_launch_together)
    _heed_interrupts(launches[0].numbers)
    try:
        report = run(ctypes.c_uint32(len(launches)), given)
    finally:
        ends = [one.hand_over(begin) for one in launches]
    if report:
        given_to = [(one.program, one.facts, one.queue.device) for one in launches]
        with taken_report(launches[0].program.runtime, report) as taken:
            raise error_of_several(given_to, taken)
    for one in launches:
        refuse_written(one.facts.arrays, _written(one.numbers))
    return TracedTo(*map(max, zip(*ends, strict=True)))


# --- parameters of the runtime ------------------------------------------------------------------


def _start(numbers: abi.LaunchNumbers, fresh: bytes | None) -> None:
    """Reset the fields that the last launch may have changed."""
    ctypes.memset(numbers.written, 0, max(1, numbers.arrays))
    if numbers.grid_barrier:
        numbers.grid_barrier.contents.value = 0
    numbers.fresh = fresh
    _heed_interrupts(numbers)


def _heed_interrupts(numbers: abi.LaunchNumbers) -> None:
    """Have Ctrl-C stop the launch on threads where Python runs no handlers.

    A program's own handler of SIGINT stops no launch there.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    numbers.stops_at_interrupt = is_default and not is_main_thread()


def _numbers(
    config: LaunchConfig,
    schedule: Schedule,
    size: LaunchEstimate,
    known: Sequence[Extent],
    registers: int,
) -> abi.LaunchNumbers:
    arrays = (abi.Array * len(known))(
        *(
            abi.Array(one.address + one.first, one.end - one.first, one.may_hold_pointers)
            for one in known
        )
    )
    return abi.LaunchNumbers(
        abi.Extents(*config.grid),
        abi.Extents(*config.block),
        abi.Extents(*(config.cluster or (1, 1, 1))),
        config.shared_bytes,
        _POLICIES[schedule.policy],
        size.workers,
        size.resident,
        schedule.seed % 2**64,
        schedule.budget_seconds,
        len(known),
        arrays,
        registers,
        False,
        schedule.searched_words,
        None,
        ctypes.create_string_buffer(max(1, len(known))),
        ctypes.pointer(ctypes.c_uint32(0)) if config.cooperative else None,
    )


# The arrays of the previous launch, and for each whether the launch wrote to it.
_WRITTEN: contextvars.ContextVar[tuple[Sequence[Extent], bytes]] = contextvars.ContextVar(
    "tmaasync written", default=((), b"")
)


def _written(numbers: abi.LaunchNumbers) -> bytes:
    """Return, per array after the blank memory, whether the launch wrote to it."""
    return ctypes.string_at(numbers.written, numbers.arrays)[1:]


def _bytes_of(extent: Extent) -> range:
    return range(extent.address + extent.first, extent.address + extent.end)


def _fresh(known: Sequence[Extent]) -> bytes | None:
    """Return, per array, whether the previous launch wrote to it; None if it wrote to none."""
    written = [_bytes_of(one) for one, flag in zip(*_WRITTEN.get(), strict=True) if flag]
    fresh = bytes(
        any(one.start < other.stop and other.start < one.stop for other in written)
        for one in map(_bytes_of, known)
    )
    return fresh if any(fresh) else None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
