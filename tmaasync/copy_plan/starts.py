"""Starts of the copies of a plan, dimension by dimension."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tmaasync._hardware import INT32_LIMIT
from tmaasync._kinds import is_integer, is_sequence, shown
from tmaasync.errors import Violation

Start = range | int


class Touched(NamedTuple):
    """The indices of one dimension that copies reach: the first, and what all others differ by."""

    first: int
    step: int  # the greatest common divisor of the differences; 0 if there is one index only


def covering(shape: Sequence[int], sides: Sequence[int]) -> tuple[range, ...]:
    """Return every multiple of the tile's side that lies within the array."""
    return tuple(range(0, extent, side) for extent, side in zip(shape, sides, strict=True))


def violations(
    starts: Sequence[object], sides: Sequence[int], shape: Sequence[int]
) -> Iterator[Violation]:
    """Yield the broken rules of starts that the caller gave."""
    if not is_sequence(starts):
        rule, remedy = "it must be a sequence", "Pass an int or a range for each dimension"
        yield Violation("starts", shown(starts), rule, remedy)
        return
    if len(starts) != len(sides):
        rule = f"the array has {len(sides)} dimensions and needs an int or a range for each"
        yield Violation("starts", shown(starts), rule, f"Pass {len(sides)}, outermost first")
        return
    for dim, (start, side, extent) in enumerate(zip(starts, sides, shape, strict=True)):
        name = f"starts[{dim}]"
        places = normalised(start)
        if places is None:
            remedy = "Pass an int, or a range such as range(0, 1024, 64)"
            yield Violation(name, shown(start), "it must be an int or a range", remedy)
        elif not places:
            yield Violation(name, start, "it is empty, so that nothing is copied", "Skip the copy")
        elif places[0] < -INT32_LIMIT or places[-1] + side > INT32_LIMIT:
            rule = "coordinates in kernels have 32 bits with a sign, up to the end of a tile"
            yield Violation(name, start, rule, "Copy a slice of the array")
        elif touched(places, side, extent) is None:
            rule = f"no copy of {side} from there on reaches any of the {extent} there are"
            yield Violation(name, start, rule, "Start within the array")


def normalised(start: object) -> range | None:
    """Return a start as an ascending range; None if it is neither an int nor a range."""
    if isinstance(start, range):
        return start if start.step > 0 else start[::-1]
    if not is_integer(start):
        return None
    place = operator.index(start)
    return range(place, place + 1)


def touched(places: range, side: int, extent: int, count: int = 1) -> Touched | None:
    """Return the indices of a dimension that copies of ``side`` reach; None if all lie outside.

    With a ``count`` above 1, only every count-th index of a copy matters: where a vector begins.
    """
    reaching = _between(places, count - side, extent - 1)
    if not reaching:
        return None
    first = max(reaching[0], 0)
    if side == 1 or count > 1:
        return Touched(first, reaching.step if len(reaching) > 1 else 0)
    if extent > 1 and _between(reaching, 2 - side, extent - 2):
        return Touched(first, 1)  # some copy reaches two neighbours
    return Touched(first, max(reaching[-1], 0) - first)


def straddling(places: range, side: int, count: int) -> int | None:
    """Return a start with a vector that begins before the dimension and ends in it, or None."""
    below = _between(places, 1 - side, -1)
    return next((place for place in below[:2] if place % count), None)


def hanging_over(places: range, side: int, extent: int) -> int | None:
    """Return a start from which a copy reaches beyond the dimension; None if none does."""
    if places[0] < 0:
        return places[0]
    return places[-1] if places[-1] + side > extent else None


def _between(places: range, low: int, high: int) -> range:
    """Return the part of an ascending range within the bounds, both included."""
    first = max(0, -((places.start - low) // places.step))
    last = (high - places.start) // places.step
    return places[min(first, len(places)) : max(min(last + 1, len(places)), 0)]
