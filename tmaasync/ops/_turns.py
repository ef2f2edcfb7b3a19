"""Work timed side by side: contestants take turns, so that whatever the clocks do, all have it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Turns", "calls_per_turn", "device_microseconds", "take_turns"]

_WARM_UP_CALLS = 3
_LEAST_CALLS = 3

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Turns(Generic[_Name]):
    """What was measured.

    Attributes:
        microseconds: Of each contestant, per call, round by round.
        calls: Of each contestant in one turn.
    """

    microseconds: Mapping[_Name, list[float]]
    calls: Mapping[_Name, int]

    def medians(self) -> dict[_Name, float]:
        """Microseconds per call."""
        return {name: statistics.median(times) for name, times in self.microseconds.items()}

    def speeds(self, name: _Name, over: _Name) -> list[float]:
        """How many times as fast a contestant is as another, round by round."""
        pairs = zip(self.microseconds[over], self.microseconds[name], strict=True)
        return [theirs / own for theirs, own in pairs]

    def speed(self, name: _Name, over: _Name) -> float:
        """The median over the rounds of the ratio within a round."""
        return statistics.median(self.speeds(name, over))


def device_microseconds(
    run: Callable[[], object], calls: int, *, is_sustained: bool = True
) -> float:
    """The device time of a call, of so many one behind the other on CuPy's current stream.

    Sustained, half as many go before them untimed: the device's clock is then what this work leaves
    it under the power limit, not what the work before did.
    """
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(calls // 2 if is_sustained else 0):
        run()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1000 / calls


_Clock = Callable[[Callable[[], object], int], float]
"""Microseconds per call, given what to call and how often."""


def calls_per_turn(
    contestants: Mapping[_Name, Callable[[], object]],
    seconds: float,
    microseconds: _Clock = device_microseconds,
) -> dict[_Name, int]:
    """Warm all up, and tell how many calls of each last so long; at least three."""
    found = {}
    for name, run in contestants.items():
        microseconds(run, _WARM_UP_CALLS)
        once = max(microseconds(run, _LEAST_CALLS), 1.0)
        found[name] = max(_LEAST_CALLS, int(seconds * 1e6 / once))
    return found


def take_turns(
    contestants: Mapping[_Name, Callable[[], object]],
    calls: Mapping[_Name, int],
    *,
    rounds: int,
    microseconds: _Clock = device_microseconds,
    on_round: Callable[[], object] = lambda: None,
) -> Turns[_Name]:
    """Time contestants in rounds in which each has a turn of its `calls_per_turn`.

    Every other round is in the reverse order: a turn leaves the next one a hotter or cooler device,
    and two contestants then come equally often behind each other and behind themselves.
    ``on_round`` is called after every round.
    """
    times: dict[_Name, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for _ in range(rounds):
        for name in order:
            times[name].append(microseconds(contestants[name], calls[name]))
        order.reverse()
        on_round()
    return Turns(times, calls)
