"""Parsing of addresses and sides on the command line."""

from __future__ import annotations

import re

from tmaasync.errors import ArgumentError

_ADDRESS_BITS = 56  # more than any device maps


def address(argument: str, text: str) -> int:
    """Parse an address, as in 4096 or 0x1000.

    Raises:
        ArgumentError: It is not an address.
    """
    try:
        parsed = int(text, 0)
    except ValueError:
        parsed = -1
    if not 0 <= parsed < 1 << _ADDRESS_BITS:
        rule = f"it must be an integer of 0 or more, below 2**{_ADDRESS_BITS}"
        raise ArgumentError.broken(argument, text, rule, "Write it as 4096 or 0x1000")
    return parsed


def integers(argument: str, text: str, *, like: str) -> tuple[int, ...]:
    """Parse numbers separated by x or commas; ``like`` is an example.

    Raises:
        ArgumentError: One of them is no integer.
    """
    try:
        return tuple(int(word) for word in re.split("[x,]", text))
    except ValueError:
        rule, remedy = "it must be integers, outermost first", f"Write it as {like}"
        raise ArgumentError.broken(argument, repr(text), rule, remedy) from None
