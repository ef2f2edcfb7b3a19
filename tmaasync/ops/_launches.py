"""Launches found again by what their arrays look like and where they lie."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tmaasync.ops._plans import NO_GUESS, Entry, PlanCache, off_granules
from tmaasync.ops._results import address_of

__all__ = ["Aim", "LaunchCache", "Repeatable", "one_array", "several_arrays"]


class Launch(Protocol):
    """What a `PreparedLaunch` does."""

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch with the first arguments at these addresses."""

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """What does that again and again."""


Aim = tuple[Launch, Sequence[int]]
"""A launch, and the addresses to launch it with."""

_MAX_LAUNCHES = 4096


@dataclass(frozen=True, slots=True)
class Repeatable:
    """An operation that is one launch, or looks like one, once its arrays are there."""

    aim: Callable[..., Aim | None]
    """The operation on arrays that lie at the addresses in its first argument, with the numbers in
    those behind it; None if that cannot be done in one launch."""
    new_arrays: Callable[[], tuple[Any, ...]] | None = None
    """Makes those that the caller does not give."""
    has_scratch: bool = False
    """Whether one of these is given back when the call returns: to the current stream's memory, so
    that it can serve no launch on another stream, which the caller names."""


def one_array(make: Callable[[], Any]) -> Callable[[], tuple[Any, ...]]:
    """Makes new arrays where there is one."""
    return lambda: (make(),)


def several_arrays(makers: Iterable[Callable[[], Any]]) -> Callable[[], tuple[Any, ...]] | None:
    """Makes new arrays, one by each; None where there are none."""
    each = tuple(makers)
    if len(each) == 1:
        return one_array(each[0])
    if len(each) == 2:  # as of attention; written out it costs less
        first, second = each
        return lambda: (first(), second())
    return (lambda: tuple(make() for make in each)) if each else None


class LaunchCache(PlanCache[Repeatable]):
    """From arrays and options to the very launch that served them before.

    Holds no array, forgets all when there are too many, and may be used from any thread.
    """

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self._launches: dict[tuple[Any, ...], Callable[[], None] | None] = {}

    def run(
        self,
        arrays: tuple[Any, ...],
        option: object,
        stream: object,
        numbers: tuple[float, ...] = (),
    ) -> tuple[Any, ...] | None:
        """Do again what was done to arrays like these.

        This is all that the host does in a call like an earlier one, so it is one function that
        calls little but C. It is safe because it looks at all that a launch depends on. The guard
        sees what the arrays are, but for where they lie: one that was resized, or another object
        at the same identity, does not pass. Where they lie now, and the stream of the moment, are
        the place whose launch it is. What follows from these was checked when the place was new:
        that the output meets no input, and that TMA reaches all. A launch that is aimed at a place
        never changes, so it writes no arguments and takes no lock.

        Args:
            arrays: Two or more; with equal options always as many.
            option: What else decides the plan.
            stream: The caller's choice; None for the current stream of the arrays' framework.
            numbers: What the launch is given beside the arrays, and may differ from call to call.

        Returns:
            The arrays, and behind them the new ones; None if nothing like it was done before, or it
            cannot be done here.
        """
        place: tuple[Any, ...]
        guess = self._guesses.get(id(arrays[1]), NO_GUESS)
        known, check, where, current_stream, device, entry = guess
        is_like = known == option and check(*arrays)
        if is_like and (stream is None or not entry.plan.has_scratch):
            new_arrays = entry.plan.new_arrays
            if new_arrays is not None:
                arrays += new_arrays()
            handle = current_stream(device) if stream is None else entry.stream(stream)
            count = len(arrays)
            if count == 4:  # as of attention; written out it costs a third less than map
                a, b, c, d = arrays
                place = (entry, handle, numbers, where(a), where(b), where(c), where(d))
            elif count == 3:  # as of a product
                a, b, c = arrays
                place = (entry, handle, numbers, where(a), where(b), where(c))
            else:
                place = (entry, handle, numbers, *map(where, arrays))
        else:
            found = self._by_key(arrays, option, is_current=stream is None)
            if found is None:
                return None
            entry, arrays, addresses = found
            place = (entry, entry.stream(stream), numbers, *addresses)
        launch = self._launches.get(place) or self._new(place)
        if launch is None:
            return None
        launch()
        return arrays

    def _by_key(
        self, arrays: tuple[Any, ...], option: object, *, is_current: bool
    ) -> tuple[Entry[Repeatable], tuple[Any, ...], Iterable[int]] | None:
        """What was done to arrays of these fingerprints, all arrays, and where they lie."""
        found = self._look_up(arrays, option)
        if found is None:
            return None
        entry, addresses = found
        if entry.plan.has_scratch and not is_current:
            return None
        new_arrays = entry.plan.new_arrays
        new = () if new_arrays is None else new_arrays()
        return entry, arrays + new, [*addresses, *map(address_of, new)]

    def _new(self, place: tuple[Any, ...]) -> Callable[[], None] | None:
        """The launch at a place, which has one of its own from the second time on."""
        entry: Entry[Repeatable]
        entry, stream, numbers, *addresses = place
        if off_granules(addresses) != entry.off_granules:
            return None
        aim = entry.plan.aim(addresses, *numbers)
        if aim is None:
            return None
        launch, arguments = aim
        if place in self._launches:
            own = self._launches[place] = launch.bind(arguments, stream)
            return own
        if len(self._launches) >= _MAX_LAUNCHES:
            self._launches.clear()
        self._launches[place] = None
        return functools.partial(launch.launch_at, arguments, stream)
