"""Plans found again by what their arrays look like, at less cost than looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from tmaasync._arrays import ArrayView, fingerprint
from tmaasync._elements import Element

__all__ = ["Layout", "PlanCache", "are_apart"]

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


class PlanCache(Generic[_Plan]):
    """From arrays and options to the plan that served arrays like these before.

    Holds no array. Arrays of frameworks without a fingerprint are never found.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._plans: dict[object, _Plan] = {}

    def find(self, arrays: Sequence[object], option: object) -> tuple[_Plan, list[int]] | None:
        """The plan and the arrays' present addresses."""
        seen = _key(arrays, option)
        if seen is None:
            return None
        key, addresses = seen
        plan = self._plans.get(key)
        return None if plan is None else (plan, addresses)

    def remember(self, arrays: Sequence[object], option: object, plan: _Plan) -> None:
        """Have the plan found for arrays like these."""
        seen = _key(arrays, option)
        if seen is not None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[seen[0]] = plan


def _key(arrays: Sequence[object], option: object) -> tuple[object, list[int]] | None:
    addresses: list[int] = []
    layouts: list[object] = []
    together = 0
    for array in arrays:
        seen = fingerprint(array)
        if seen is None:
            return None
        address, layout = seen
        together |= address
        addresses.append(address)
        layouts.append(layout)
    # Whether all start on 16 bytes decides how they are reached, so it is part of the key.
    return (option, together & _GRANULE_MASK == 0, *layouts), addresses
