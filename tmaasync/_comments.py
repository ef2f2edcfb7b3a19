"""Comments of CUDA C++ and PTX."""

from __future__ import annotations

import re

__all__ = ["COMMENT", "without_comments"]

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING_OR_COMMENT = re.compile(rf'("(?:\\.|[^"\\\n])*"|\'"\')|{COMMENT.pattern}', re.DOTALL)


def without_comments(text: str) -> str:
    r"""Return a source with a space for each comment; its lines keep their numbers.

    >>> without_comments('f("//x"); /* one\ntwo */ g();  // three')
    'f("//x");  \n g();   '
    """
    return _STRING_OR_COMMENT.sub(_blanked, text)


def _blanked(found: re.Match[str]) -> str:
    return found[1] or " " + "\n" * found[0].count("\n")
