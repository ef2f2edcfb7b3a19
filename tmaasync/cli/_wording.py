"""Remedies of the library in the words of a command: options instead of Python arguments."""

from __future__ import annotations

import re
from collections.abc import Collection

from tmaasync import modes

__all__ = ["in_options"]

_OPTIONS = {
    "Swizzle": ("swizzle", "mode_name"),
    "Interleave": ("interleave",),
    "L2Promotion": ("l2_promotion",),
    "OOBFill": ("oob_fill",),
}
"""Parameters of commands that take a mode, by the enumeration."""

_FLAGS = {"mode_name": "mode"}
_MEMBER = re.compile(rf"\b(is )?({'|'.join(_OPTIONS)})\.([A-Z0-9_]+)")
_KEYWORD = re.compile(r"\b([a-z]\w*)=(\"?)([\w.+-]+)\2")


def in_options(text: str, parameters: Collection[str]) -> str:
    """Return a message with ``name="value"`` and modes as options, where the command has them.

    >>> in_options('Pass dtype="uint8", or Swizzle.B128.', ("dtype", "swizzle"))
    'Pass --dtype uint8, or --swizzle 128B.'
    """

    def option(name: str, value: str) -> str:
        return f"--{_FLAGS.get(name, name).replace('_', '-')} {value}"

    def member(found: re.Match[str]) -> str:
        given, kind, member_name = found.groups()
        mode = getattr(modes, kind)[member_name]
        name = next((name for name in _OPTIONS[kind] if name in parameters), None)
        if name is None:
            return found[0]
        return f"is {mode.short_name}" if given else option(name, mode.short_name)

    def keyword(found: re.Match[str]) -> str:
        return option(found[1], found[3]) if found[1] in parameters else found[0]

    return _KEYWORD.sub(keyword, _MEMBER.sub(member, text))
