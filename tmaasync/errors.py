"""Exceptions of the package, as one tree.

```
TMAError
├── ArgumentError (ValueError)        an argument breaks a rule; nothing was done
│   ├── TensorMapError                the rules of the 128 bytes; ``violations`` lists every one
│   ├── LaunchError                   grid, block, cluster, shared memory or kernel arguments
│   └── StaleTileError                the array of a tile was freed or reallocated
├── ArrayTypeError (TypeError)        not an array, or one whose elements TMA cannot read
├── BackendError (RuntimeError)       no driver, no GPU, no compiler, or a GPU older than sm_90
├── CompileError (RuntimeError)       the CUDA compiler refused a kernel; ``log`` is its output
├── DriverError (RuntimeError)        the driver refused a call that passed all checks
├── ProtocolError (RuntimeError)      an mbarrier or a pipeline was used against its protocol
├── HangError (RuntimeError)          a wait took too long, or for ever
│   └── EmulatedDeadlock              a kernel on the CPU: every thread waits, nothing is in flight
├── EmulatedRace (RuntimeError)       a kernel on the CPU: two accesses that nothing orders
├── EmulatedFault (RuntimeError)      an illegal operation in a kernel on the CPU
└── EmulatedTimeout (RuntimeError)    a kernel on the CPU runs without progress
```

`UntestedDeviceWarning` (UserWarning) is no error: a kernel is about to run on a GPU that the
package was not tested on.

A message names the argument, its value, the rule, and the remedy. If one call breaks several
rules, one exception reports them all. After an error nothing half-made is left.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

__all__ = [
    "ArgumentError",
    "ArrayTypeError",
    "AwaitedSignal",
    "BackendError",
    "CompileError",
    "DriverError",
    "EmulatedAccess",
    "EmulatedDeadlock",
    "EmulatedFault",
    "EmulatedRace",
    "EmulatedTimeout",
    "HangError",
    "HungSignal",
    "HungThreads",
    "LaunchError",
    "ProtocolError",
    "StaleTileError",
    "TMAError",
    "TensorMapError",
    "UntestedDeviceWarning",
    "Violation",
    "WaitingThreads",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the argument, its value, the rule, and the remedy."""

    argument: str
    value: object
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.argument} is {self.value}; {self.rule}. {self.remedy}."


class TMAError(Exception):
    """The base of every exception raised by this package."""


class _WithViolations(Exception):  # noqa: N818 - a part of two errors
    """An error that lists the broken rules."""

    violations: tuple[Violation, ...] = ()

    @classmethod
    def of(cls, violations: Iterable[Violation]) -> Self:
        """Return the error that reports all these violations, a line each."""
        found = tuple(violations)
        error = cls("\n".join(map(str, found)))
        error.violations = found
        return error

    @classmethod
    def broken(cls, argument: str, value: object, rule: str, remedy: str) -> Self:
        """Return the error that reports one violation."""
        return cls.of([Violation(argument, value, rule, remedy)])

    @classmethod
    def raise_for(cls, violations: Iterable[Violation]) -> None:
        """Raise the error if there is any violation."""
        found = tuple(violations)
        if found:
            raise cls.of(found)


class ArgumentError(TMAError, _WithViolations, ValueError):
    """An argument breaks a rule. Nothing was created or launched.

    ``violations`` lists the broken rules if the call checked several.
    """


class TensorMapError(ArgumentError):
    """An illegal tensor map or tile; ``violations`` lists every broken rule."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        """Join the violations into one message."""
        self.violations = violations
        super().__init__("\n".join(str(violation) for violation in violations))

    @classmethod
    def of(cls, violations: Iterable[Violation]) -> Self:
        """Return the error that reports all these violations, a line each."""
        return cls(tuple(violations))

    def __reduce__(self) -> tuple[type[TensorMapError], tuple[tuple[Violation, ...]]]:
        return type(self), (self.violations,)


class LaunchError(ArgumentError):
    """Grid, block, cluster, shared memory or arguments do not fit the kernel or the device."""


class StaleTileError(ArgumentError):
    """A tile's array was freed, resized or moved since the tile was made."""


class ArrayTypeError(TMAError, _WithViolations, TypeError):
    """The object is no array, or its elements have a type that TMA cannot read.

    ``violations`` has the broken rule of an object that is no array, or of an element type.
    """


class BackendError(TMAError, RuntimeError):
    """A requirement of the call (driver, GPU, compiler) is absent or too old."""


class CompileError(TMAError, RuntimeError):
    """The CUDA compiler refused a kernel.

    Attributes:
        log: The compiler's whole output.
        undefined: Names that the source uses and nothing defines: perhaps types and constants that
            the host has to supply.
    """

    def __init__(self, message: str, log: str = "", undefined: Iterable[str] = ()) -> None:
        """Keep the compiler's log and the undefined names next to the message."""
        self.log = log
        self.undefined = tuple(dict.fromkeys(undefined))
        super().__init__(message)


class DriverError(TMAError, RuntimeError):
    """The CUDA driver refused a call."""


class ProtocolError(TMAError, RuntimeError):
    """An mbarrier or a pipeline was used against its protocol."""


_Block = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwaitedSignal:
    """A rank waits for its own signal to reach an epoch, and has seen a lower one."""

    rank: int
    number: int
    epoch: int
    seen: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} waits for epoch {self.epoch} of signal {self.number}, which has "
            f"epoch {self.seen}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingThreads:
    """Threads of one block that wait for the same thing.

    An mbarrier is named by its offset in the block's shared memory and, where the source gives it
    one, its name; a named barrier by its number; all are None for threads that wait in another
    instruction. ``signal`` is set in a wait for `Signals`, and ``of_stream`` where a stream waits
    for one, not a kernel. ``phase`` counts the barrier's phases
    from 0; bytes below zero came in beyond the expected. ``source`` is the line in the kernel, as
    in ``gemm.cu:120``.

    ``role`` is what the kernel calls these threads with ``set_role``. ``ring`` and ``stage`` are
    the ring and the stage that the mbarrier belongs to. ``delivered_to`` names the buffers that
    loads of this phase wrote, and ``late`` is a sentence about the warps that have yet to arrive.
    """

    block: _Block
    threads: tuple[int, ...]
    instruction: str
    source: str | None = None
    barrier_name: str | None = None
    barrier_offset: int | None = None
    barrier_number: int | None = None
    barrier_block: _Block | None = None
    phase: int | None = None
    missing_arrivals: int | None = None
    missing_bytes: int | None = None
    expected_bytes: int | None = None
    delivered_bytes: int | None = None
    role: str | None = None
    ring: str | None = None
    stage: int | None = None
    delivered_to: tuple[str, ...] = ()
    late: str | None = None
    signal: AwaitedSignal | None = None
    device: int | None = None
    of_stream: bool = False

    @property
    def hung_signal(self) -> HungSignal | None:
        """The wait for a signal as `HangError` lists it; None for other waits."""
        if self.signal is None:
            return None
        return HungSignal(
            rank=self.signal.rank,
            signal=self.signal.number,
            epoch=self.signal.epoch,
            seen=self.signal.seen,
            block=None if self.of_stream else self.block,
            thread=None if self.of_stream else self.threads[0],
            source=self.source,
        )

    def __str__(self) -> str:
        who = f"{_who(self.role, self.block, self.threads)}{_at(self.source)}"
        who = f"{_on(self.device)}{'a stream' if self.of_stream else who}"
        if self.signal is not None:
            return f"{who}: {self.instruction}: {self.signal}"
        if self.barrier_offset is not None:
            name = self.barrier_name or f"the mbarrier at shared offset {self.barrier_offset}"
            late = f"; {self.late}" if self.late else ""
            return (
                f"{who}: {self.instruction} on {name}, phase {self.phase}: {self._missing()}"
                f"{self._why()}{late}"
            )
        if self.barrier_number is not None:
            return (
                f"{who}: barrier {self.barrier_number}: {self.missing_arrivals} arrivals are "
                "missing"
            )
        return f"{who}: {self.instruction}"

    def _missing(self) -> str:
        arrivals, size = self.missing_arrivals or 0, self.missing_bytes or 0
        if size >= 0:
            return f"{arrivals} arrivals and {size} bytes are missing"
        surplus = f"{-size} bytes more than expected arrived"
        return f"{arrivals} arrivals are missing, and {surplus}" if arrivals else surplus

    def _why(self) -> str:
        """Return the likely cause of missing or surplus bytes."""
        if not self.missing_bytes:
            return ""
        to = f" to {', '.join(self.delivered_to)}" if self.delivered_to else ""
        expects = f"it expects {self.expected_bytes}"
        return f" ({expects}, and loads delivered {self.delivered_bytes}{to})"


def _who(role: str | None, block: _Block, threads: tuple[int, ...]) -> str:
    """Name threads by their role, where the kernel names one."""
    if role is None:
        return f"block {block}, {_named(threads)}"
    named = f"thread {threads[0]}" if len(threads) == 1 else _named_warps(threads)
    return f"{role} ({named} of block {block})"


def _one_thread(role: str | None, block: _Block, thread: int) -> str:
    return f"block {block}, thread {thread}" if role is None else _who(role, block, (thread,))


_WARP_THREADS = 32


def _named_warps(threads: tuple[int, ...]) -> str:
    """Name whole warps by their numbers, other threads by their own."""
    warps = tuple(dict.fromkeys(thread // _WARP_THREADS for thread in threads))
    if len(threads) != len(warps) * _WARP_THREADS:
        return _named(threads)
    return f"warp{'s' if len(warps) > 1 else ''} {_ranges(warps)}"


def _on(device: int | None) -> str:
    """Name a device of an emulated world."""
    return "" if device is None else f"device {device}, "


def _of_rule(rule: str | None) -> str:
    return f" [rule: {rule}]" if rule else ""


def _at(source: str | None) -> str:
    return "" if source is None else f" at {source}"


_MAX_RANGES = 4


def _named(threads: tuple[int, ...]) -> str:
    """Name the threads in runs; many runs become a count."""
    runs = _ranges(threads)
    if len(runs.split(", ")) <= _MAX_RANGES:
        return f"thread{'s' if len(threads) > 1 else ''} {runs}"
    return f"{len(threads)} of threads {threads[0]}-{threads[-1]}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Runs of neighbours: "0, 32-63"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


_MOST_WAITS = 24


def _listed(waits: Sequence[WaitingThreads]) -> str:
    """Return a line for each wait; of more than 24, the first of each device."""
    shown: Sequence[WaitingThreads] = waits
    if len(waits) > _MOST_WAITS:
        devices = dict.fromkeys(wait.device for wait in waits)
        of_each = [[wait for wait in waits if wait.device == device] for device in devices]
        most = max(1, _MOST_WAITS // len(devices))
        shown = [wait for own in of_each for wait in own[:most]]
    lines = "".join(f"\n  {wait}" for wait in shown)
    others = len(waits) - len(shown)
    return lines + (f"\n  and {others} more, which the error's waits list" if others else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HungThreads:
    """Threads of one block that waited too long on the GPU for the same phase of an mbarrier.

    ``source`` is the line of the wait, as in ``gemm.cu:38``, ``code`` its text, and ``function``
    the function that it is in. ``barrier_offset`` counts from the start of dynamic shared memory;
    static shared memory has negative offsets. ``phase`` is the parity that the wait names. Some of
    the ``arrivals`` that end a phase are missing, or some of the bytes; a negative number of
    missing bytes means that more arrived than was expected. ``waited_seconds`` is the time until
    the kernel was stopped. ``role`` is what the kernel calls these threads with ``set_role``;
    ``ring`` and ``stage`` are the ring and the stage that the mbarrier belongs to.
    """

    block: _Block
    cta_rank: int
    threads: tuple[int, ...]
    source: str
    code: str | None
    function: str
    barrier_name: str | None
    barrier_offset: int
    phase: int
    arrivals: int
    missing_arrivals: int
    missing_bytes: int
    waited_seconds: float
    cause: str
    role: str | None = None
    ring: str | None = None
    stage: int | None = None

    def __str__(self) -> str:
        name = self.barrier_name or f"the mbarrier at shared offset {self.barrier_offset}"
        code = "" if self.code is None else f": {self.code}"
        who = _who(self.role, self.block, self.threads)
        return (
            f"{who} in {self.function} at {self.source}{code}"
            f"\n    {name}, phase {self.phase}: {self._missing()} after "
            f"{self.waited_seconds:.2f} s; {self.cause}"
        )

    def _missing(self) -> str:
        arrivals = f"{self.missing_arrivals} of {self.arrivals} arrivals"
        if self.missing_bytes >= 0:
            return f"{arrivals} and {self.missing_bytes} bytes are missing"
        surplus = f"{-self.missing_bytes} bytes more than expected had arrived"
        return f"{arrivals} are missing, and {surplus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HungSignal:
    """A wait for a signal that took too long, or for ever: no rank had posted the epoch.

    ``rank`` waited for its own ``signal`` to reach ``epoch``, and had ``seen`` a lower one.
    ``block``, ``thread`` and ``source`` name the kernel's wait; None for a wait of a stream.
    ``waited_seconds`` is None on the emulator, which knows that the wait cannot end.
    """

    rank: int
    signal: int
    epoch: int
    seen: int
    waited_seconds: float | None = None
    block: _Block | None = None
    thread: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        who = "a stream" if self.block is None else f"block {self.block}, thread {self.thread}"
        at = _at(self.source)
        after = "" if self.waited_seconds is None else f", after {self.waited_seconds:.2f} s"
        return (
            f"rank {self.rank}, {who}{at}: signal {self.signal} has epoch {self.seen}, and the "
            f"wait is for {self.epoch}{after}; no rank has posted it"
        )


class HangError(TMAError, RuntimeError):
    """A wait that does not end. On the GPU it exceeded its budget, and the kernel was stopped.

    Waits on mbarriers have a budget in debug builds, waits for `Signals` in all. On the emulator it
    is an `EmulatedDeadlock`, which needs no budget.

    Attributes:
        kernel: The kernel's name; for waits for signals, how many ranks there are.
        budget_seconds: How long a wait may take; None on the emulator.
        waits: Who waited on which mbarrier: the longest wait first, other clusters' waits last.
        signals: Which rank waited for which signal.
        others: How many warps' waits were not recorded.
        has_ended: Whether the kernel has ended. Then the CUDA context is as before, the next launch
            works, and what the kernel should have written is undefined. Otherwise it still runs.
    """

    def __init__(
        self,
        kernel: str,
        budget_seconds: float,
        waits: tuple[HungThreads, ...],
        *,
        signals: tuple[HungSignal, ...] = (),
        others: int = 0,
        has_ended: bool = True,
    ) -> None:
        """Join the waits into one message."""
        self.kernel = kernel
        self.budget_seconds: float | None = budget_seconds
        self.waits = waits
        self.signals = signals
        self.others = others
        self.has_ended = has_ended
        lines = "".join(f"\n  {wait}" for wait in (*waits, *signals))
        more = f"\n  and {others} more" if others else ""
        advice = (
            "\nCheck that every rank was launched before the host waited, and that ranks and "
            "epochs of post() and wait() agree."
        )
        end = (
            "the kernel was stopped"
            if has_ended
            else "the kernel does not stop: some of its threads are stuck elsewhere, at a named "
            "barrier say. Start a new process"
        )
        super().__init__(
            f"{kernel}: a wait took longer than budget_seconds={budget_seconds:g}, and {end}:"
            f"{lines}{more}{advice if signals else ''}"
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        make = functools.partial(
            type(self), signals=self.signals, others=self.others, has_ended=self.has_ended
        )
        return make, (self.kernel, self.budget_seconds, self.waits)


class EmulatedDeadlock(HangError):  # noqa: N818 - a kernel's end, named by its kind
    """On the CPU: every thread waits and nothing is in flight; ``waits`` lists who and on what.

    ``signals`` lists the waits for `Signals`. ``resident`` is the number of blocks
    that wait and the number in the grid, where others have not started because the device holds no
    more at once; else None. ``limit`` says what sets that number.
    """

    # The emulator knows more of a wait than a GPU reports.
    waits: tuple[WaitingThreads, ...]  # type: ignore[assignment]

    def __init__(
        self,
        kernel: str,
        waits: tuple[WaitingThreads, ...],
        resident: tuple[int, int] | None = None,
        limit: str = "",
    ) -> None:
        """Join the waits into one message."""
        self.kernel = kernel
        self.waits = waits
        self.resident = resident
        self.limit = limit
        self.budget_seconds, self.others, self.has_ended = None, 0, True
        self.signals = tuple(wait.hung_signal for wait in waits if wait.hung_signal)
        if resident is None:
            text = f"{kernel}: every thread waits, and nothing is in flight:{_listed(waits)}"
            TMAError.__init__(self, text)
            return
        blocks, grid = resident
        TMAError.__init__(
            self,
            f"{kernel}: {blocks} of {grid} blocks are resident, as many as the device holds at "
            f"once{f' ({limit})' if limit else ''}, and all wait; the others start when one of "
            "these ends. A block may wait for another one only if the whole grid is resident: "
            f"launch at most {blocks} blocks that do several tiles each (a persistent kernel), and "
            f"let cooperative=True check that. The first that wait:{_listed(waits)}",
        )

    def __reduce__(self) -> tuple[type[EmulatedDeadlock], tuple[Any, ...]]:
        return type(self), (self.kernel, self.waits, self.resident, self.limit)


class EmulatedFault(TMAError, RuntimeError):  # noqa: N818 - as above
    """On the CPU: a thread executed an operation that is illegal, or would trap on the GPU.

    ``rule`` is the name of the rule that it broke, for ``emulate.scheduled(tolerate=...)``; None if
    no launch may relax it.
    """

    def __init__(  # noqa: PLR0913 - the parts of a report
        self,
        kernel: str,
        reason: str,
        block: _Block,
        thread: int,
        source: str | None = None,
        role: str | None = None,
        device: int | None = None,
        rule: str | None = None,
    ) -> None:
        """Name the thread, its block and its role, the line in the source, and the rule."""
        self.device = device
        self.kernel = kernel
        self.reason = reason
        self.block = block
        self.thread = thread
        self.source = source
        self.role = role
        self.rule = rule
        who = _one_thread(role, block, thread)
        super().__init__(f"{kernel}: {_on(device)}{who}{_at(source)}: {reason}.{_of_rule(rule)}")

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        where = (self.block, self.thread, self.source, self.role, self.device, self.rule)
        return type(self), (self.kernel, self.reason, *where)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedAccess:
    """One of two accesses that race: its thread, its operation, and the line in the kernel.

    ``role`` is what the kernel calls the thread's warp with ``set_role``. ``barrier_name`` is the
    mbarrier that a TMA load completes on.
    """

    block: _Block
    thread: int
    operation: str
    is_write: bool
    source: str | None
    role: str | None = None
    barrier_name: str | None = None
    device: int | None = None

    EARLIER: ClassVar[str] = "write before this launch, by the host or by another launch"

    def __str__(self) -> str:
        if self.operation == self.EARLIER:
            return self.operation
        who = _one_thread(self.role, self.block, self.thread)
        return f"{_on(self.device)}{who}{_at(self.source)}: {self.operation}"


class EmulatedRace(TMAError, RuntimeError):  # noqa: N818 - as above
    """On the CPU: two accesses to the same bytes, one of them a write, that nothing orders.

    Attributes:
        memory: ``"shared"``, ``"global"`` or ``"registers"``.
        start: The first byte of both, as an offset in shared memory or as an address.
        name: The variable in the kernel's source, such as ``stages[1].b``; None if unknown.
        first: The access that came first in this run, asynchronous ones when they were issued; in
            another run it may be the second.
        second: The other one.
        cause: What is most likely missing.
        rule: The name of the broken rule, for ``emulate.scheduled(tolerate=...)``; None if no
            launch may relax it.
    """

    def __init__(  # noqa: PLR0913 - the parts of a report
        self,
        kernel: str,
        *,
        memory: str,
        start: int,
        name: str | None,
        first: EmulatedAccess,
        second: EmulatedAccess,
        cause: str,
        rule: str | None = None,
    ) -> None:
        """Name the bytes, both threads, and the missing step."""
        self.kernel = kernel
        self.memory = memory
        self.start = start
        self.name = name
        self.first = first
        self.second = second
        self.cause = cause
        self.rule = rule
        places = {
            "shared": f"shared offset {start}",
            "global": f"global address {start:#x}",
            "registers": "A's registers of wgmma" if start else "the accumulators of wgmma",
        }
        place = places[memory] if name is None else f"{name} ({places[memory]})"
        super().__init__(
            f"{kernel}: a race on {place}:\n  {first}\n  {second}\n{cause}.{_of_rule(rule)}"
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        state = {name: value for name, value in vars(self).items() if name != "kernel"}
        return functools.partial(type(self), self.kernel, **state), ()


class EmulatedTimeout(TMAError, RuntimeError):  # noqa: N818 - as above
    """On the CPU: a cluster made no progress for ``budget_seconds`` of a core.

    ``budget_seconds`` is None if a thread is in a loop that nothing can end. ``looping`` is the
    block and the thread that runs and never waits; None if threads poll or synchronise in a loop.
    ``waits`` has the position of every thread of the cluster.
    """

    def __init__(
        self,
        kernel: str,
        budget_seconds: float | None,
        looping: tuple[_Block, int] | None,
        waits: tuple[WaitingThreads, ...],
    ) -> None:
        """Name the looping thread, and where the others wait."""
        self.kernel = kernel
        self.budget_seconds = budget_seconds
        self.looping = looping
        self.waits = waits
        what = (
            "its threads make no progress: no phase completes, no copy lands, no thread ends"
            if looping is None
            else f"block {looping[0]}, thread {looping[1]} runs on and never lets others run"
        )
        advice = "Poll with try_wait, test_wait, an atomic or __nanosleep(), which let others run"
        if budget_seconds is None:
            what = (
                f"block {looping and looping[0]}, thread {looping and looping[1]} is in an endless "
                "loop, in which neither its registers nor memory change"
            )
        else:
            what = f"budget_seconds={budget_seconds:g} are spent; {what}"
            advice += (
                "; or give a kernel that computes for long more with "
                "emulate.scheduled(budget_seconds=...)"
            )
        super().__init__(f"{kernel}: {what}. {advice}:{_listed(waits)}")

    def __reduce__(self) -> tuple[type[EmulatedTimeout], tuple[object, ...]]:
        return type(self), (self.kernel, self.budget_seconds, self.looping, self.waits)


class UntestedDeviceWarning(UserWarning):
    """A kernel is compiled for a GPU of a compute capability that the package was not tested on.

    Once for each kind of GPU in a process. Hide it with
    ``warnings.simplefilter("ignore", tmaasync.UntestedDeviceWarning)``. Where a filter makes
    warnings errors, the launch raises it and does nothing.
    """
