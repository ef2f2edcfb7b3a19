"""Symbols of the object files (ELF) that the C++ compiler writes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["SYMBOL", "THREAD_LOCAL", "SymbolTable", "symbol_tables"]

_SYMBOL_TABLE = 2
# 64-bit ELF (System V ABI, chapter 4). Section: type, offset, size, link. Symbol: name, info,
# visibility, section, value, size.
_SECTION = struct.Struct("<4xI16xQQI20x")
SYMBOL = struct.Struct("<IBBHQQ")
THREAD_LOCAL = 6  # in the low four bits of info


class SymbolTable(NamedTuple):
    """The symbols of a table with their positions in the file, and where their names begin."""

    symbols: list[tuple[int, tuple[int, ...]]]
    names_at: int


def symbol_tables(file: bytes) -> Iterator[SymbolTable]:
    """Yield the symbol tables of an object file."""
    (sections_at,) = struct.unpack_from("<Q", file, 0x28)
    (count,) = struct.unpack_from("<H", file, 0x3C)
    sections = [
        _SECTION.unpack_from(file, sections_at + index * _SECTION.size) for index in range(count)
    ]
    for kind, start, size, names in sections:
        if kind == _SYMBOL_TABLE:
            places = range(start, start + size, SYMBOL.size)
            symbols = [(at, SYMBOL.unpack_from(file, at)) for at in places]
            yield SymbolTable(symbols, sections[names][1])
