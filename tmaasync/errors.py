"""Everything this package raises, as one tree.

```
TMAError
├── ArgumentError (ValueError)        an argument breaks a rule; nothing was done
│   ├── TensorMapError                the rules of the 128 bytes; ``violations`` lists every one
│   ├── LaunchError                   grid, block, cluster, shared memory or kernel arguments
│   └── StaleTileError                the array behind a tile was freed or reallocated
├── ArrayTypeError (TypeError)        not an array, or one whose elements TMA cannot read
├── BackendError (RuntimeError)       no driver, no GPU, no compiler, or a GPU older than sm_90
├── CompileError (RuntimeError)       the CUDA compiler refused a kernel; ``log`` holds its words
├── DriverError (RuntimeError)        the driver refused a call that we believed to be legal
├── ProtocolError (RuntimeError)      a barrier or a pipeline was used against its protocol
├── EmulatedDeadlock (RuntimeError)   a kernel on the CPU: every thread waits, nothing is under way
├── EmulatedFault (RuntimeError)      a kernel on the CPU did what would end it on the chip
└── EmulatedTimeout (RuntimeError)    a kernel on the CPU runs on, and nothing comes of it
```

A message names the argument, its value, the rule, and the remedy. Where one call breaks several
rules, one exception reports them all. After any of these nothing half-made stays behind.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ArgumentError",
    "ArrayTypeError",
    "BackendError",
    "CompileError",
    "DriverError",
    "EmulatedDeadlock",
    "EmulatedFault",
    "EmulatedTimeout",
    "LaunchError",
    "ProtocolError",
    "StaleTileError",
    "TMAError",
    "TensorMapError",
    "Violation",
    "WaitingThreads",
]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: which argument, its value, the rule, and what to do about it."""

    argument: str
    value: object
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.argument} is {self.value}; {self.rule}. {self.remedy}."


class TMAError(Exception):
    """The base of every exception raised by this package."""


class ArgumentError(TMAError, ValueError):
    """An argument breaks a rule. Nothing was created or launched."""


class TensorMapError(ArgumentError):
    """A tensor map that the hardware cannot have; ``violations`` lists every broken rule."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        """Join the violations into one message."""
        self.violations = violations
        super().__init__("\n".join(str(violation) for violation in violations))

    def __reduce__(self) -> tuple[type[TensorMapError], tuple[tuple[Violation, ...]]]:
        return type(self), (self.violations,)


class LaunchError(ArgumentError):
    """Grid, block, cluster, shared memory or arguments that the kernel cannot be launched with."""


class StaleTileError(ArgumentError):
    """The array behind a tile was freed, resized or moved since the tile was made."""


class ArrayTypeError(TMAError, TypeError):
    """The object is no array, or its elements have a type that TMA cannot read."""


class BackendError(TMAError, RuntimeError):
    """What the call needs (driver, GPU, compiler) is absent or too old."""


class CompileError(TMAError, RuntimeError):
    """The CUDA compiler refused a kernel; ``log`` holds everything it said."""

    def __init__(self, message: str, log: str = "") -> None:
        """Keep the compiler's log beside the message."""
        self.log = log
        super().__init__(message)


class DriverError(TMAError, RuntimeError):
    """The CUDA driver refused a call."""


class ProtocolError(TMAError, RuntimeError):
    """A barrier or a pipeline was used against its protocol."""


_Block = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingThreads:
    """Threads of one block that wait for the same thing.

    An mbarrier is told by its offset in the block's shared memory, a named barrier by its number;
    both are None for threads that wait in another instruction. ``phase`` counts the barrier's
    phases from 0; bytes below zero came in beyond those expected.
    """

    block: _Block
    threads: tuple[int, ...]
    instruction: str
    barrier_offset: int | None = None
    barrier_number: int | None = None
    barrier_block: _Block | None = None
    phase: int | None = None
    missing_arrivals: int | None = None
    missing_bytes: int | None = None

    def __str__(self) -> str:
        who = f"block {self.block}, threads {_ranges(self.threads)}"
        if self.barrier_offset is not None:
            return (
                f"{who}: {self.instruction} on the mbarrier at shared offset {self.barrier_offset},"
                f" phase {self.phase}: {self.missing_arrivals} arrivals and {self.missing_bytes} "
                "bytes are missing"
            )
        if self.barrier_number is not None:
            return (
                f"{who}: barrier {self.barrier_number}: {self.missing_arrivals} arrivals are "
                "missing"
            )
        return f"{who}: {self.instruction}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Runs of neighbours: "0, 32-63"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


class EmulatedDeadlock(TMAError, RuntimeError):  # noqa: N818 - a kernel's end, named by its kind
    """On the CPU: every thread waits and nothing is under way; ``waits`` says who and on what."""

    def __init__(self, kernel: str, waits: tuple[WaitingThreads, ...]) -> None:
        """Join what the threads wait for into one message."""
        self.kernel = kernel
        self.waits = waits
        lines = "".join(f"\n  {wait}" for wait in waits)
        super().__init__(f"{kernel}: every thread waits, and nothing is under way:{lines}")

    def __reduce__(self) -> tuple[type[EmulatedDeadlock], tuple[str, tuple[WaitingThreads, ...]]]:
        return type(self), (self.kernel, self.waits)


class EmulatedFault(TMAError, RuntimeError):  # noqa: N818 - as above
    """On the CPU: a thread did what would end the kernel on the chip, or what no kernel may do."""

    def __init__(self, kernel: str, reason: str, block: _Block, thread: int) -> None:
        """Say which thread of which block."""
        self.kernel = kernel
        self.reason = reason
        self.block = block
        self.thread = thread
        super().__init__(f"{kernel}: block {block}, thread {thread}: {reason}.")

    def __reduce__(self) -> tuple[type[EmulatedFault], tuple[str, str, _Block, int]]:
        return type(self), (self.kernel, self.reason, self.block, self.thread)


class EmulatedTimeout(TMAError, RuntimeError):  # noqa: N818 - as above
    """On the CPU: for ``budget_seconds`` of a core nothing came of what a cluster did.

    ``looping`` is the block and the thread that runs and never waits; None if threads poll or meet
    again and again. ``waits`` says where every thread of the cluster stands.
    """

    def __init__(
        self,
        kernel: str,
        budget_seconds: float,
        looping: tuple[_Block, int] | None,
        waits: tuple[WaitingThreads, ...],
    ) -> None:
        """Say who loops, and where the others stand."""
        self.kernel = kernel
        self.budget_seconds = budget_seconds
        self.looping = looping
        self.waits = waits
        what = (
            "its threads go round in circles: no phase completes, no copy lands, no thread ends"
            if looping is None
            else f"block {looping[0]}, thread {looping[1]} runs on and never lets others run"
        )
        lines = "".join(f"\n  {wait}" for wait in waits)
        super().__init__(
            f"{kernel}: budget_seconds={budget_seconds:g} are spent; {what}. Poll with try_wait, "
            "test_wait, an atomic or __nanosleep(), which let others run; or give a kernel that "
            f"computes for long more with emulate.scheduled(budget_seconds=...):{lines}"
        )

    def __reduce__(self) -> tuple[type[EmulatedTimeout], tuple[object, ...]]:
        return type(self), (self.kernel, self.budget_seconds, self.looping, self.waits)
