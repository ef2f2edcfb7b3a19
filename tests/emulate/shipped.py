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
_ONCE = re.compile(r"^#pragma once[^\n]*\n", re.MULTILINE)
_NAMES = re.compile(
    r"^(?:struct|class|enum class|constexpr int) (?:\[\[\w+\]\] )?(\w+)", re.MULTILINE
)


def whole_text(name: str) -> str:
    """Return the kernel's text, with its family's and the structured headers inlined."""
    return _renamed_rings() + _inlined(find_kernel(name), set())


def _renamed_rings() -> str:
    # The host's preamble has included the rings themselves.
    structured = include_dir() / "tmaasync" / "structured"
    headers = sorted((*structured.glob("*ring*.cuh"), structured / "stage_range.cuh"))
    names = dict.fromkeys(name for path in headers for name in _NAMES.findall(path.read_text()))
    return "".join(f"#define {name} Inlined{name}\n" for name in names)


def _inlined(path: Path, seen: set[Path]) -> str:
    def text_of(include: re.Match[str]) -> str:
        own, library = include.groups()
        header = (path.parent / own).resolve() if own else include_dir() / library
        if header in seen:
            return ""
        seen.add(header)
        return _inlined(header, seen)

    return _OWN_INCLUDE.sub(text_of, _ONCE.sub("", path.read_text()))
