"""The object files (ELF) that the C++ compiler writes: symbols, and dynamic shared memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_SYMBOL_TABLE = 2
# 64-bit ELF (System V ABI, chapter 4). Section: type, offset, size, link. Symbol: name, info,
# visibility, section, value, size.
_SECTION = struct.Struct("<4xI16xQQI20x")
_SYMBOL = struct.Struct("<IBBHQQ")
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
            places = range(start, start + size, _SYMBOL.size)
            symbols = [(at, _SYMBOL.unpack_from(file, at)) for at in places]
            yield SymbolTable(symbols, sections[names][1])


_DYNAMIC_SHARED = b"_ZN16tmaasync_emulate14dynamic_memoryE"  # in tmaasync_emulate/cuda.hpp
_UNDEFINED = 0


def with_dynamic_shared(compiled: bytes) -> bytes:
    """Bind an object's undefined ``thread_local`` variables to dynamic shared memory.

    The compiler leaves one undefined variable per ``extern __shared__`` array, with the array's
    mangled name.
    """
    file = bytearray(compiled)
    for symbols, names in symbol_tables(compiled):
        named = _DYNAMIC_SHARED + b"\0"
        dynamic = next(
            (found for _, found in symbols if compiled.startswith(named, names + found[0])), None
        )
        for at, (name, info, _, section, *_) in symbols:
            if dynamic and section == _UNDEFINED and info & 15 == THREAD_LOCAL:
                _SYMBOL.pack_into(file, at, name, *dynamic[1:])
    return bytes(file)
