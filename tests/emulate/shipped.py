"""The text of a shipped kernel in one piece."""

from __future__ import annotations

import re
from pathlib import Path

from tmaasync._source.paths import find_kernel, include_dir

_OWN_INCLUDE = re.compile(
    r'#include (?:"([\w./]+\.cuh)"|<(tmaasync/(?:(?:\w+/)?tensor_memory(?:/\w+)?|'
    r"(?:structured|attention)/\w+|shards)\.cuh)>)"
    r"[ \t]*(?://[^\n]*)?\n"
)
_FAMILY_INCLUDE = re.compile(r'#include "([\w./]+\.cuh)"[ \t]*(?://[^\n]*)?\n')
_ONCE = re.compile(r"^#pragma once[^\n]*\n", re.MULTILINE)
_NAMES = re.compile(
    r"^(?:struct|class|enum class|constexpr int) (?:\[\[\w+\]\] )?(\w+)", re.MULTILINE
)


def whole_text(name: str, *, of_family_alone: bool = False) -> str:
    """Return the kernel's text, with its family's and the structured headers inlined."""
    if of_family_alone:
        return _inlined(find_kernel(name), set(), _FAMILY_INCLUDE)
    return _renamed_rings() + _inlined(find_kernel(name), set(), _OWN_INCLUDE)


def without_pragma(path: Path) -> str:
    """Return a header's text without its directive against a second inclusion."""
    return _ONCE.sub("", path.read_text(encoding="utf-8"))


def _renamed_rings() -> str:
    # The host's preamble has included the rings themselves.
    structured = include_dir() / "tmaasync" / "structured"
    headers = sorted((*structured.glob("*ring*.cuh"), structured / "stage_range.cuh"))
    names = dict.fromkeys(name for path in headers for name in _NAMES.findall(path.read_text()))
    return "".join(f"#define {name} Inlined{name}\n" for name in names)


def _inlined(path: Path, seen: set[Path], pattern: re.Pattern[str]) -> str:
    def text_of(include: re.Match[str]) -> str:
        own, *library = include.groups()
        header = (path.parent / own).resolve() if own else include_dir() / library[0]
        if header in seen:
            return ""
        seen.add(header)
        return _inlined(header, seen, pattern)

    return pattern.sub(text_of, without_pragma(path))
