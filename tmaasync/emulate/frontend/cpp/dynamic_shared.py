"""``extern __shared__`` arrays, which all refer to the CTA's dynamic shared memory."""

from __future__ import annotations

import re

from tmaasync._comments import without_comments
from tmaasync.emulate.frontend.cpp.object_file import SYMBOL, THREAD_LOCAL, symbol_tables

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
                SYMBOL.pack_into(file, at, name, *dynamic[1:])
    return bytes(file)
