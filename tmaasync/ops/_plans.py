"""Plans found again by what their arrays look like, at less cost than looking at them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from tmaasync._arrays import ArrayView, Guard, fingerprint, guard
from tmaasync._elements import Element
from tmaasync._streams import current_stream_of, stream_of

__all__ = ["NO_GUESS", "Entry", "Layout", "PlanCache", "are_apart", "is_apart", "off_granules"]

_MAX_PLANS = 4096
_GRANULE_MASK = 15
_Plan = TypeVar("_Plan")


class Layout(NamedTuple):
    """What a plan depends on: all of an `ArrayView` but its owner and address."""

    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element: Element
    device: int | None

    @classmethod
    def of(cls, view: ArrayView) -> Layout:
        """The layout of an array."""
        return cls(*view[1:5])

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to behind the last, for strides that are not negative."""
        pairs = zip(self.shape, self.strides_bytes, strict=True)
        return sum((size - 1) * stride for size, stride in pairs) + self.element.itemsize


def are_apart(addresses: Sequence[int], spans: Sequence[int]) -> bool:
    """Whether two arrays of these spans do not meet."""
    first, second = addresses
    return first + spans[0] <= second or second + spans[1] <= first


def is_apart(which: int, addresses: Sequence[int], spans: Sequence[int]) -> bool:
    """Whether one of the arrays, which is not empty, meets none of the others.

    Addresses behind those that have a span do not count.
    """
    start = addresses[which]
    end = start + spans[which]
    met = 0  # itself, too
    for address, span in zip(addresses, spans, strict=False):
        if address < end and start < address + span:
            met += 1
    return met == 1


@dataclass(slots=True, eq=False)
class Entry(Generic[_Plan]):
    """A plan, what it is found by beside the arrays, and where its work goes."""

    plan: _Plan
    option: object
    off_granules: int
    device: int
    current_stream: Callable[[int], int]
    guard: Guard | None

    def stream(self, given: object) -> int:
        """The caller's choice, or the current one of the arrays' framework."""
        if given is None:
            return self.current_stream(self.device)
        return stream_of((), self.device, given)


class _Guess(NamedTuple, Generic[_Plan]):
    """An entry, and in front of it what is asked of it in every call: unpacking costs least."""

    option: object
    check: Callable[..., bool]
    address_of: Callable[[Any], int]
    current_stream: Callable[[int], int]
    device: int
    entry: Entry[_Plan]


NO_GUESS: Any = (object(), None, None, None, None, None)
"""For arrays that no plan is guessed for: its option is like no other."""


class PlanCache(Generic[_Plan]):
    """From arrays and options to the plan that served arrays like these before.

    Two ways lead there. The arrays' fingerprints are a key that always finds the plan. Quicker is a
    guess, the plan of the last call with the same second array (of weights, as a rule), confirmed
    by its guard. Holds no array, and may be asked from any thread. Arrays of frameworks without a
    fingerprint are never found.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[object, Entry[_Plan]] = {}
        self._guesses: dict[int, _Guess[_Plan]] = {}

    def find(
        self, arrays: Sequence[object], option: object, stream: object
    ) -> tuple[_Plan, list[int], int] | None:
        """The plan, the arrays' present addresses, and the stream to use.

        Args:
            arrays: Two or more; with equal options always as many.
            option: What else decides the plan.
            stream: The caller's choice; None for the current stream of the arrays' framework.
        """
        guess = self._guesses.get(id(arrays[1]), NO_GUESS)
        known, check, address_of, _, _, entry = guess
        if known == option and check(*arrays):
            addresses = [*map(address_of, arrays)]
            if off_granules(addresses) == entry.off_granules:
                return entry.plan, addresses, entry.stream(stream)
        found = self._look_up(arrays, option)
        if found is None:
            return None
        entry, addresses = found
        return entry.plan, addresses, entry.stream(stream)

    def _look_up(
        self, arrays: Sequence[object], option: object
    ) -> tuple[Entry[_Plan], list[int]] | None:
        """By the arrays' fingerprints."""
        seen = _key(arrays, option)
        if seen is None:
            return None
        key, addresses = seen
        known = self._entries.get(key)
        if known is None:
            return None
        self._guess_next_time(arrays, known)
        return known, addresses

    def remember(
        self,
        arrays: Sequence[object],
        option: object,
        plan: _Plan,
        frameworks: Sequence[str],
        device: int | None,
    ) -> None:
        """Have the plan found for arrays like these.

        Args:
            arrays: As `find` gets them.
            option: The same.
            plan: What to find.
            frameworks: Whose current stream is to be used.
            device: Where the arrays lie.
        """
        seen = _key(arrays, option)
        if seen is None or device is None:
            return
        if len(self._entries) >= _MAX_PLANS:
            self._entries.clear()
        key, addresses = seen
        off = off_granules(addresses) or 0
        entry = Entry(plan, option, off, device, current_stream_of(frameworks), guard(arrays))
        self._entries[key] = entry
        self._guess_next_time(arrays, entry)

    def _guess_next_time(self, arrays: Sequence[object], entry: Entry[_Plan]) -> None:
        fitting = entry.guard
        if fitting is None:
            return
        if not fitting.check(*arrays):  # a parameter, say, or inference mode
            fitting = guard(arrays)
            if fitting is None:
                return
            entry.guard = fitting
        if len(self._guesses) >= _MAX_PLANS:
            self._guesses.clear()
        self._guesses[id(arrays[1])] = _Guess(
            entry.option, *fitting, entry.current_stream, entry.device, entry
        )


def off_granules(addresses: Iterable[int]) -> int | None:
    """Which do not start at a multiple of 16 bytes, a bit each; None if there is no memory."""
    off, bit = 0, 1
    for address in addresses:
        if address & _GRANULE_MASK:
            off |= bit
        elif not address:
            return None
        bit <<= 1
    return off


def _key(arrays: Sequence[object], option: object) -> tuple[object, list[int]] | None:
    addresses: list[int] = []
    layouts: list[object] = []
    for array in arrays:
        seen = fingerprint(array)
        if seen is None:
            return None
        address, layout = seen
        addresses.append(address)
        layouts.append(layout)
    # Whether each starts on 16 bytes decides how it is reached, so that is part of the key.
    off = off_granules(addresses)
    if off is None:  # freed; a view says so
        return None
    key = (option, off, *layouts)
    try:
        hash(key)
    except TypeError:  # an option that is a list, say
        return None
    return key, addresses
