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
├── EmulatedTimeout (RuntimeError)    a kernel on the CPU runs without progress
└── VerificationError (RuntimeError)  `emulate.verify` has not explored everything
```

`UntestedDeviceWarning` (UserWarning) is no error: a kernel is about to run on a GPU that the
package was not tested on.

A message names the argument, its value, the rule, and the remedy. If one call breaks several
rules, one exception reports them all. After an error nothing half-made is left.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from tmaasync._error_parts import (
    AwaitedSignal,
    Block,
    EmulatedAccess,
    HungSignal,
    HungThreads,
    WaitingThreads,
    at_source,
    listed,
    of_rule,
    on_device,
    one_thread,
)

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
    "VerificationError",
    "Violation",
    "WaitingThreads",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the argument, its value, the rule, and the remedy.

    ``verb`` joins argument and value: "b holds float64", "out has shape (4, 8)".
    """

    argument: str
    value: object
    rule: str
    remedy: str
    verb: str = "is"

    def __str__(self) -> str:
        return f"{self.argument} {self.verb} {self.value}; {self.rule}. {self.remedy}."


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
    def broken(cls, argument: str, value: object, rule: str, remedy: str, verb: str = "is") -> Self:
        """Return the error that reports one violation."""
        return cls.of([Violation(argument, value, rule, remedy, verb)])

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


class VerificationError(TMAError, RuntimeError):
    """`tmaasync.emulate.verify` has not looked at everything, or nothing was launched."""


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

    def __reduce__(self) -> tuple[object, ...]:
        make = functools.partial(
            type(self), signals=self.signals, others=self.others, has_ended=self.has_ended
        )
        return make, (self.kernel, self.budget_seconds, self.waits), vars(self)


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
            text = f"{kernel}: every thread waits, and nothing is in flight:{listed(waits)}"
            TMAError.__init__(self, text)
            return
        blocks, grid = resident
        TMAError.__init__(
            self,
            f"{kernel}: {blocks} of {grid} blocks are resident, as many as the device holds at "
            f"once{f' ({limit})' if limit else ''}, and all wait; the others start when one of "
            "these ends. A block may wait for another one only if the whole grid is resident: "
            f"launch at most {blocks} blocks that do several tiles each (a persistent kernel), and "
            f"let cooperative=True check that. The first that wait:{listed(waits)}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.kernel, self.waits, self.resident, self.limit), vars(self)


class EmulatedFault(TMAError, RuntimeError):  # noqa: N818 - as above
    """On the CPU: a thread executed an operation that is illegal, or would trap on the GPU.

    ``rule`` is the name of the rule that it broke, for ``emulate.scheduled(tolerate=...)``; None if
    no launch may relax it.
    """

    def __init__(  # noqa: PLR0913 - the parts of a report
        self,
        kernel: str,
        reason: str,
        block: Block,
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
        who = one_thread(role, block, thread)
        super().__init__(
            f"{kernel}: {on_device(device)}{who}{at_source(source)}: {reason}.{of_rule(rule)}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        where = (self.block, self.thread, self.source, self.role, self.device, self.rule)
        return type(self), (self.kernel, self.reason, *where), vars(self)


class EmulatedRace(TMAError, RuntimeError):  # noqa: N818 - as above
    """On the CPU: two accesses to the same bytes, one of them a write, that nothing orders.

    Attributes:
        memory: ``"shared"``, ``"global"``, ``"registers"`` or ``"tensor"``.
        start: The first byte of both, as an offset in shared memory or as an address; the first
            word of both in tensor memory, with the lane above bit 16.
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
            "tensor": f"lane {start >> 16}, column {start & 0xFFFF} of tensor memory",
        }
        place = places[memory] if name is None else f"{name} ({places[memory]})"
        super().__init__(
            f"{kernel}: a race on {place}:\n  {first}\n  {second}\n{cause}.{of_rule(rule)}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        known = {"kernel", "__notes__"}
        parts = {name: value for name, value in vars(self).items() if name not in known}
        return functools.partial(type(self), self.kernel, **parts), (), vars(self)


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
        looping: tuple[Block, int] | None,
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
        super().__init__(f"{kernel}: {what}. {advice}:{listed(waits)}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.kernel, self.budget_seconds, self.looping, self.waits), vars(self)


class UntestedDeviceWarning(UserWarning):
    """A kernel is compiled for a GPU of a compute capability that the package was not tested on.

    Once for each kind of GPU in a process. Hide it with
    ``warnings.simplefilter("ignore", tmaasync.UntestedDeviceWarning)``. Where a filter makes
    warnings errors, the launch raises it and does nothing.
    """
