"""Casts of ``extern __shared__`` arrays, whose types describe dynamic shared memory."""

from __future__ import annotations

import re

from tmaasync._source.tokens import without_comments

# Patterns, because a wrong guess costs no more than a name in a report.
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
