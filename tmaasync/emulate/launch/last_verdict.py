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
    """What a launch leaves open.

    ``broken`` has a bit for each rule that it broke and tolerated. ``is_unsearched``: some accesses
    came after the search for races. ``has_forgotten``: the search had no room for an access.
    ``has_pointed``: some memory was reached by a pointer alone, and its bounds are unknown.
    """

    broken: int = 0
    is_unsearched: bool = False
    has_forgotten: bool = False
    has_pointed: bool = False

    def joined(self, other: RunNotes) -> RunNotes:
        """Return the notes of both."""
        return RunNotes(
            self.broken | other.broken,
            self.is_unsearched or other.is_unsearched,
            self.has_forgotten or other.has_forgotten,
            self.has_pointed or other.has_pointed,
        )

    def not_checked(self) -> Iterator[str]:
        """Yield what the notes leave open."""
        if self.is_unsearched:
            yield f"races after the first {SEARCHED_WORDS:,} words: races=True searches all"
        if self.has_forgotten:
            yield "races of more than six accesses to 8 bytes: emulate.verify keeps all"
        if self.has_pointed:
            yield "bounds of arrays that only pointers lead to: pass them as arguments"
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
        yield from self.notes.not_checked()
        yield "features that the emulator does not model (docs/emulator_limits.md)"


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
