"""The schedule of launches: how threads and asynchronous copies are interleaved."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from tmaasync._kinds import is_number, is_one_of, not_flags, not_integers, shown
from tmaasync.emulate import abi, rules
from tmaasync.errors import ArgumentError

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
    through global memory are interleaved there. ``tolerate`` has the names of rules to relax: a
    launch that breaks one logs a note, and goes on. With None these are `rules.UNPUNISHED`, and
    `rules.UNPUNISHED_BY_BLACKWELL` there, unless ``races=True``; and `rules.OF_COMPILERS` for PTX
    modules.
    """

    policy: Policy = "round_robin"
    seed: int = 0
    workers: int | None = None
    budget_seconds: float = 10.0
    max_threads: int = 1 << 26
    races: bool | None = None
    tolerate: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.tolerate is not None:
            object.__setattr__(self, "tolerate", rules.checked(self.tolerate))
        if not is_one_of(self.policy, _POLICIES):
            raise ArgumentError.broken(
                "policy", shown(self.policy), f"there are {', '.join(_POLICIES)}", "Pass one"
            )
        workers = {} if self.workers is None else {"workers": self.workers}
        integers = not_integers(seed=self.seed, max_threads=self.max_threads, **workers)
        flags = {} if self.races is None else {"races": self.races}
        ArgumentError.raise_for([*integers, *not_flags(**flags)])
        if self.workers is not None and self.workers < 1:
            raise ArgumentError.broken("workers", self.workers, "it must be 1 or more", "Pass None")
        if not is_number(self.budget_seconds) or not self.budget_seconds > 0:
            raise ArgumentError.broken(
                "budget_seconds",
                shown(self.budget_seconds),
                "it must be above 0",
                "Pass math.inf to let every kernel run",
            )

    @property
    def abi_policy(self) -> abi.Policy:
        """The policy in the runtime's enum."""
        return _POLICIES[self.policy]

    def tolerated(self, *, is_ptx: bool, has_tensor_memory: bool) -> frozenset[str]:
        """Return the names of the rules that launches of a source on a chip relax."""
        if self.tolerate is not None:
            return self.tolerate
        unpunished = rules.UNPUNISHED
        if has_tensor_memory:
            unpunished |= rules.UNPUNISHED_BY_BLACKWELL
        relaxed = frozenset[str]() if self.races else unpunished
        return relaxed | rules.OF_COMPILERS if is_ptx else relaxed

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


def _rules_of_environment() -> frozenset[str] | None:
    names = os.environ.get("TMAASYNC_TOLERATE", "").split(",")
    if names == [""]:
        return None
    return rules.checked([name.strip() for name in names if name.strip()])


_DEFAULT = Schedule(races=_races_of_environment(), tolerate=_rules_of_environment())
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
    tolerate: Collection[str] | None = None,
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
        "tolerate": tolerate,
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
