"""``extern __shared__`` arrays, which all refer to the CTA's dynamic shared memory."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from tmaasync._comments import without_comments

__all__ = ["variables_of_casts", "with_dynamic_shared"]

_ARRAY = re.compile(r"\bextern\b[^;{}()]*?\b__shared__\b[^;{}]*?\b(\w+)\s*\[\s*\]")
# A declaration or assignment from a cast of the entire array, as in
# "auto& shared = *reinterpret_cast<SharedMemory*>(&raw[0]);".
_FROM_CAST = (
    r"\b(\w+)\s*[=({]\s*\*?\s*\(?\s*"
    r"(?:(?:reinterpret|static)_cast\s*<[^;()]*[*&]\s*>\s*\(|\([^;()]*\*\s*\))\s*"
    r"(?:static_cast\s*<\s*void\s*\*\s*>\s*\(\s*)?"
    r"(?:&\s*(?:%s)\s*\[\s*0\s*\]|&?\s*(?:%s)\b(?!\s*[\[+]))"
)


def variables_of_casts(text: str) -> frozenset[str]:
    """Return the variables that point or refer to the start of dynamic shared memory.

    >>> variables_of_casts("extern __shared__ char raw[]; auto& s = *reinterpret_cast<S*>(raw);")
    frozenset({'s'})
    """
    bare = without_comments(text)
    arrays = "|".join(sorted(set(_ARRAY.findall(bare))))
    if not arrays:
        return frozenset()
    return frozenset(re.findall(_FROM_CAST % (arrays, arrays), bare))


_DYNAMIC_SHARED = b"_ZN16tmaasync_emulate14dynamic_memoryE"  # in tmaasync_emulate/cuda.hpp
_SYMBOL_TABLE = 2
_THREAD_LOCAL = 6
_UNDEFINED = 0
# 64-bit ELF (System V ABI, chapter 4). Section: type, offset, size, link. Symbol: name, info,
# visibility, section, value, size.
_SECTION = struct.Struct("<4xI16xQQI20x")
_SYMBOL = struct.Struct("<IBBHQQ")


def with_dynamic_shared(compiled: bytes) -> bytes:
    """Bind an object's undefined ``thread_local`` variables to dynamic shared memory.

    The compiler leaves one undefined variable per ``extern __shared__`` array, with the array's
    mangled name.
    """
    file = bytearray(compiled)
    for symbols, names in _symbol_tables(compiled):
        named = _DYNAMIC_SHARED + b"\0"
        dynamic = next(
            (found for _, found in symbols if compiled.startswith(named, names + found[0])), None
        )
        for at, (name, info, _, section, *_) in symbols:
            if dynamic and section == _UNDEFINED and info & 15 == _THREAD_LOCAL:
                _SYMBOL.pack_into(file, at, name, *dynamic[1:])
    return bytes(file)


def _symbol_tables(file: bytes) -> Iterator[tuple[list[tuple[int, tuple[int, ...]]], int]]:
    """Yield each table's symbols with their positions, and the position of the name table."""
    (sections_at,) = struct.unpack_from("<Q", file, 0x28)
    (count,) = struct.unpack_from("<H", file, 0x3C)
    sections = [
        _SECTION.unpack_from(file, sections_at + index * _SECTION.size) for index in range(count)
    ]
    for kind, start, size, names in sections:
        if kind == _SYMBOL_TABLE:
            places = range(start, start + size, _SYMBOL.size)
            yield [(at, _SYMBOL.unpack_from(file, at)) for at in places], sections[names][1]
