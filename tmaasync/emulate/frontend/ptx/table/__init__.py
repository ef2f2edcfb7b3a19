"""The instructions of inline PTX that run on the CPU, by family."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tmaasync.emulate.frontend.ptx.row import Row, family_of
from tmaasync.emulate.frontend.ptx.table import (
    arithmetic,
    asynchronous,
    conversions,
    matrices,
    memory,
    tcgen05,
    threads,
    wmma,
)

__all__ = ["SPECIAL_REGISTERS", "rows_by_family"]

SPECIAL_REGISTERS = threads.SPECIAL_REGISTERS


@functools.cache
def rows_by_family() -> Mapping[str, tuple[Row, ...]]:
    """Return all rows, in the order in which an opcode is tried."""
    families: dict[str, tuple[Row, ...]] = {}
    modules = (
        arithmetic,
        conversions,
        memory,
        threads,
        asynchronous,
        matrices,
        tcgen05,
        wmma,
    )
    for row in (row for module in modules for row in module.ROWS):
        for family in {family_of(_plain(start)) for start in _starts(row.pattern)}:
            families[family] = (*families.get(family, ()), row)
    return families


def _starts(pattern: str) -> tuple[str, ...]:
    """Return the starts of a pattern: several if it begins with a choice."""
    if pattern.startswith(("(", "<")):
        names, _, rest = pattern[1:].partition(">" if pattern[0] == "<" else ")")
        return tuple(name + rest for name in names.rpartition(":")[2].split("|"))
    return (pattern,)


def _plain(pattern: str) -> str:
    for letter in "{<($":
        pattern = pattern.partition(letter)[0]
    return pattern
