"""Verdicts on launches: the search, its finding, and the checks that are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tmaasync.errors import TMAError, VerificationError

Status = Literal["clean", "incomplete", "violated"]
_WORST_FIRST: tuple[Status, ...] = ("violated", "incomplete", "clean")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchVerdict:
    """The verdict on one launch.

    ``clean``: no interleaving of its threads and copies has a race, a deadlock or a fault.
    ``violated``: one has ``error``; ``order`` says how it differs from the usual order, step by
    step, and is empty if that order has it. ``incomplete``: nothing was found, and ``not_checked``
    lists the checks that are left out.

    ``runs`` of the kernel stand for all interleavings that were explored. ``operations`` counts
    the arrivals, waits, copies and atomic operations of the first run, ``phases`` the completed
    phases of its barriers, and ``unordered`` the pairs of them whose order matters and may change.
    """

    kernel: str
    status: Status
    runs: int = 1
    operations: int = 0
    phases: int = 0
    unordered: int = 0
    seconds: float = 0.0
    not_checked: tuple[str, ...] = ()
    error: TMAError | None = None
    order: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say the status, and then why, a line for each reason."""
        runs = f"{self.runs} run{'s' * (self.runs != 1)}"
        head = f"{self.kernel}: {self.status} ({runs}, {self.operations:,} operations)"
        return "\n".join([head, *self._reasons()])

    def _reasons(self) -> Iterator[str]:
        for step in self.order:
            yield f"  order: {step}"
        if self.error is not None:
            yield f"  {type(self.error).__name__}: {self.error}"
        for one in self.not_checked:
            yield f"  not checked: {one}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        error = None if self.error is None else f"{type(self.error).__name__}: {self.error}"
        names = ("kernel", "status", "runs", "operations", "phases", "unordered", "seconds")
        return {
            **{name: getattr(self, name) for name in names},
            "not_checked": list(self.not_checked),
            "error": error,
            "order": list(self.order),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on launches, which is the worst of theirs."""

    launches: tuple[LaunchVerdict, ...]

    @property
    def status(self) -> Status:
        """``violated``, ``incomplete`` or ``clean``; without a launch ``incomplete``."""
        found = {one.status for one in self.launches} or {"incomplete"}
        return next(status for status in _WORST_FIRST if status in found)

    @property
    def error(self) -> TMAError | None:
        """The first launch's error that has one."""
        return next((one.error for one in self.launches if one.error is not None), None)

    def __str__(self) -> str:
        """Say the verdict on each launch."""
        return "\n".join(map(str, self.launches)) or "no launch was verified"

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as values of JSON."""
        return {"status": self.status, "launches": [one.as_dict() for one in self.launches]}

    def require_clean(self) -> None:
        """Raise unless every launch is clean.

        Raises:
            TMAError: The error that a launch has in some interleaving.
            VerificationError: Something was not checked, or nothing was launched.
        """
        if self.error is not None:
            raise self.error
        if self.status != "clean":
            raise VerificationError(str(self))
