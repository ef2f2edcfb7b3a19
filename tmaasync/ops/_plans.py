"""Plans found again by what their arrays look like, at less cost than looking at them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tmaasync._arrays import ArrayView, Guard, fingerprint, guard
from tmaasync._elements import Element
from tmaasync._streams import current_stream_of, stream_of

__all__ = ["Layout", "PlanCache", "are_apart", "is_apart"]

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


@dataclass(slots=True)
class _Entry(Generic[_Plan]):
    plan: _Plan
    option: object
    device: int
    current_stream: Callable[[int], int]
    guard: Guard | None


class PlanCache(Generic[_Plan]):
    """From arrays and options to the plan that served arrays like these before.

    Two ways lead there. The arrays' fingerprints are a key that always finds the plan. Quicker is a
    guess, the plan of the last call with the same second array (of weights, as a rule), confirmed
    by its guard. Holds no array, and may be asked from any thread. Arrays of frameworks without a
    fingerprint are never found.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[object, _Entry[_Plan]] = {}
        self._guesses: dict[int, tuple[Guard, _Entry[_Plan]]] = {}

    def find(
        self, arrays: Sequence[object], option: object, stream: object
    ) -> tuple[_Plan, list[int], int] | None:
        """The plan, the arrays' present addresses, and the stream to use.

        Args:
            arrays: Two or more; with equal options always as many.
            option: What else decides the plan.
            stream: The caller's choice; None for the current stream of the arrays' framework.
        """
        guess = self._guesses.get(id(arrays[1]))
        if guess is not None:
            (check, address_of), entry = guess
            if entry.option == option and check(*arrays):
                addresses = [*map(address_of, arrays)]
                if _all_on_granules(addresses):
                    if stream is None:
                        return entry.plan, addresses, entry.current_stream(entry.device)
                    return entry.plan, addresses, _stream(entry, stream)
        seen = _key(arrays, option)
        if seen is None:
            return None
        key, addresses = seen
        known = self._entries.get(key)
        if known is None:
            return None
        self._guess_next_time(arrays, addresses, known)
        return known.plan, addresses, _stream(known, stream)

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
        entry = _Entry(plan, option, device, current_stream_of(frameworks), guard(arrays))
        self._entries[key] = entry
        self._guess_next_time(arrays, addresses, entry)

    def _guess_next_time(
        self, arrays: Sequence[object], addresses: Sequence[int], entry: _Entry[_Plan]
    ) -> None:
        fitting = entry.guard
        if fitting is None or not _all_on_granules(addresses):
            return
        if not fitting.check(*arrays):  # a parameter, say, or inference mode
            fitting = guard(arrays)
            if fitting is None:
                return
            entry.guard = fitting
        if len(self._guesses) >= _MAX_PLANS:
            self._guesses.clear()
        self._guesses[id(arrays[1])] = (fitting, entry)


def _all_on_granules(addresses: Sequence[int]) -> bool:
    """Whether there is memory at all of them, and it starts at a multiple of 16 bytes."""
    return functools.reduce(operator.or_, addresses) & _GRANULE_MASK == 0 and 0 not in addresses


def _stream(entry: _Entry[_Plan], stream: object) -> int:
    if stream is None:
        return entry.current_stream(entry.device)
    return stream_of((), entry.device, stream)


def _key(arrays: Sequence[object], option: object) -> tuple[object, list[int]] | None:
    addresses: list[int] = []
    layouts: list[object] = []
    off_granules = 0
    for array in arrays:
        seen = fingerprint(array)
        if seen is None:
            return None
        address, layout = seen
        if not address:  # freed; a view says so
            return None
        off_granules = off_granules << 1 | (address & _GRANULE_MASK != 0)
        addresses.append(address)
        layouts.append(layout)
    # Whether each starts on 16 bytes decides how it is reached, so that is part of the key.
    return (option, off_granules, *layouts), addresses
