"""Parsing of addresses, sides and modes on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

from tmaasync.errors import ArgumentError, Violation
from tmaasync.modes import Swizzle

__all__ = ["SWIZZLES", "address", "integers", "mode"]

SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
"""The modes that sm_90 has."""

_ADDRESS_BITS = 56  # more than any device maps

_Mode = TypeVar("_Mode", bound=IntEnum)


def address(argument: str, text: str) -> int:
    """Parse an address, as in 4096 or 0x1000.

    Raises:
        ArgumentError: It is not an address.
    """
    try:
        place = int(text, 0)
    except ValueError:
        place = -1
    if not 0 <= place < 1 << _ADDRESS_BITS:
        rule = f"it must be an integer of 0 or more, below 2**{_ADDRESS_BITS}"
        raise ArgumentError.of([Violation(argument, text, rule, "Write it as 4096 or 0x1000")])
    return place


def integers(argument: str, text: str, *, like: str) -> tuple[int, ...]:
    """Parse numbers separated by x or commas; ``like`` is an example.

    Raises:
        ArgumentError: One of them is no integer.
    """
    try:
        return tuple(int(word) for word in re.split("[x,]", text))
    except ValueError:
        rule, remedy = "it must be integers, outermost first", f"Write it as {like}"
        raise ArgumentError.of([Violation(argument, repr(text), rule, remedy)]) from None


def mode(argument: str, text: str, modes: Sequence[_Mode]) -> _Mode:
    """Parse the name of a member in any case; ``128B`` stands for ``B128``.

    Raises:
        ArgumentError: There is no such member among the modes.
    """
    name = re.sub(r"^(\d+)B$", r"B\1", text.upper())
    found = next((member for member in modes if member.name == name), None)
    if found is None:
        names = ", ".join(re.sub(r"^B(\d+)$", r"\1B", member.name) for member in modes)
        rule, remedy = "there is no such mode", f"Pass one of {names}"
        raise ArgumentError.of([Violation(argument, repr(text), rule, remedy)])
    return found
