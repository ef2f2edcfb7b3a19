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
└── ProtocolError (RuntimeError)      a barrier or a pipeline was used against its protocol
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
    "LaunchError",
    "ProtocolError",
    "StaleTileError",
    "TMAError",
    "TensorMapError",
    "Violation",
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
