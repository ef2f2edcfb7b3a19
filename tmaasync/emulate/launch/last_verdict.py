"""The verdict on the last launch of a context."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tmaasync.emulate.abi import RULE_NAMES
from tmaasync.emulate.launch.schedule import SEARCHED_WORDS, Schedule
from tmaasync.emulate.launch.verdict import LaunchVerdict, Verdict
from tmaasync.errors import (
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    EmulatedTimeout,
    TMAError,
)

FOUND = (EmulatedDeadlock, EmulatedFault, EmulatedRace, EmulatedTimeout)
"""The errors that an interleaving of a launch may have."""


class RunNotes(NamedTuple):
    """The rules that a launch broke and tolerated, a bit for each, and whether all was searched."""

    broken: int
    is_unsearched: bool

    def joined(self, other: RunNotes) -> RunNotes:
        """Return the notes of both."""
        return RunNotes(self.broken | other.broken, self.is_unsearched or other.is_unsearched)

    def not_checked(self) -> Iterator[str]:
        """Yield what the notes leave open."""
        for rule, name in enumerate(RULE_NAMES):
            if rule and self.broken >> rule & 1:
                yield f"the rule {name}: the launch broke and tolerated it"


class EndedLaunch(NamedTuple):
    """What is known of a launch at its end."""

    kernel: str
    schedule: Schedule
    notes: RunNotes
    error: TMAError | None
    seconds: float

    def verdict(self) -> LaunchVerdict:
        """Return ``violated`` with an error, else ``incomplete``: one interleaving was run."""
        found = isinstance(self.error, FOUND) and not isinstance(self.error, EmulatedTimeout)
        return LaunchVerdict(
            kernel=self.kernel,
            status="violated" if found else "incomplete",
            seconds=self.seconds,
            not_checked=() if found else tuple(self._not_checked()),
            error=self.error,
        )

    def _not_checked(self) -> Iterator[str]:
        schedule = self.schedule
        seed = "" if schedule.policy == "round_robin" else f", seed {schedule.seed}"
        yield f"interleavings other than this one ({schedule.policy}{seed}): use emulate.verify"
        if schedule.races is False:
            yield "races: the schedule has races=False"
        elif self.notes.is_unsearched:
            yield f"races after the first {SEARCHED_WORDS:,} words: races=True searches all"
        yield from self.notes.not_checked()


_LAST: contextvars.ContextVar[Callable[[], Verdict] | None] = contextvars.ContextVar(
    "tmaasync last verdict", default=None
)
keep_verdict = _LAST.set


def keep_launches(ended: Iterable[EndedLaunch]) -> None:
    """Keep launches that ran together, or one, as the last ones."""
    kept = tuple(ended)
    _LAST.set(lambda: Verdict(tuple(one.verdict() for one in kept)))


def last_verdict() -> Verdict:
    """Return the verdict on the last launch on the CPU in this thread, or the last of `verify`.

    An ordinary launch is ``violated`` or ``incomplete``: it runs one interleaving. The verdict
    lists the checks that it leaves out. Without a launch the verdict has none.
    """
    last = _LAST.get()
    return Verdict(()) if last is None else last()
