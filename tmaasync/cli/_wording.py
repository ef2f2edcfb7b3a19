"""Remedies of the library in the words of a command: options instead of Python arguments."""

from __future__ import annotations

import re
from collections.abc import Collection

from tmaasync import modes

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


def with_short_names(text: str) -> str:
    """Return a text with the short names of modes.

    >>> with_short_names("swizzle: Swizzle.B64 -> Swizzle.B128")
    'swizzle: 64B -> 128B'
    """
    return _MEMBER.sub(lambda found: f"{found[1] or ''}{_mode(found).short_name}", text)


def in_options(text: str, parameters: Collection[str]) -> str:
    """Return a message with ``name="value"`` and modes as options, where the command has them.

    >>> in_options('Pass dtype="uint8", or Swizzle.B128.', ("dtype", "swizzle"))
    'Pass --dtype uint8, or --swizzle 128B.'
    """

    def option(name: str, value: str) -> str:
        return f"--{_FLAGS.get(name, name).replace('_', '-')} {value}"

    def member(found: re.Match[str]) -> str:
        name = next((name for name in _OPTIONS[found[2]] if name in parameters), None)
        if name is None:
            return found[0]
        short = _mode(found).short_name
        return f"is {short}" if found[1] else option(name, short)

    def keyword(found: re.Match[str]) -> str:
        return option(found[1], found[3]) if found[1] in parameters else found[0]

    return _KEYWORD.sub(keyword, _MEMBER.sub(member, text))


def _mode(found: re.Match[str]) -> modes.Mode:
    members: type[modes.Mode] = getattr(modes, found[2])
    return members[found[3]]
