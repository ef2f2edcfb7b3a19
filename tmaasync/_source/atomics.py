"""Atomic functions whose result a source leaves unused, which the hardware runs as reductions."""

from __future__ import annotations

import re

from tmaasync._source.tokens import without_comments

_CALL = re.compile(r"\b(atomic[A-Z]\w*?)(?:_block|_system)?\s*\(")
_COMMUTE = {f"atomic{name}" for name in ("Add", "Sub", "Min", "Max", "And", "Or", "Xor")}
_CONDITION = re.compile(r"\b(?:if|for|while)\s*$")


def unused_atomics(text: str) -> dict[int, str]:
    """Return the function of each line whose atomic calls are statements of their own.

    >>> unused_atomics("atomicAdd(p, f(1));\\nint t = atomicAdd(p, 1);\\nif (t) atomicMax(p, t);")
    {1: 'atomicAdd', 3: 'atomicMax'}
    """
    text = without_comments(text)
    found: dict[int, str] = {}
    for call in _CALL.finditer(text):
        line = text.count("\n", 0, call.start()) + 1
        is_alone = call[1] in _COMMUTE and _is_statement(text, call.start(), call.end() - 1)
        same = found.get(line, call[1]) == call[1]
        found[line] = call[1] if is_alone and same else ""
    return {line: function for line, function in found.items() if function}


def _is_statement(text: str, start: int, bracket: int) -> bool:
    before = text[:start].rstrip()
    is_first = before[-1:] in ("", ";", "{", "}") or before.endswith("else")
    is_last = text[_partner(text, bracket, 1) + 1 :].lstrip().startswith(";")
    return is_last and (is_first or _follows_condition(before))


def _follows_condition(before: str) -> bool:
    if not before.endswith(")"):
        return False
    opened = _partner(before, len(before) - 1, -1)
    return _CONDITION.search(before[:opened]) is not None


def _partner(text: str, bracket: int, step: int) -> int:
    """Return the index of the round bracket that belongs to this one."""
    depth, at = 0, bracket
    while 0 <= at < len(text):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            break
        at += step
    return at
