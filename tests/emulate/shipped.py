"""The text of a shipped kernel in one piece."""

from __future__ import annotations

import re
from pathlib import Path

from tmaasync._source.paths import find_kernel, include_dir

_STRUCTURED = (
    "ring|ring_groups|stage_range|store_ring|roles|scheduler|k_range|shards|mainloop"
    "|epilogue|output_chunk|epilogue_ops|split_k"
    "|attention|attention_pipelines|attention_mask|ones|paged|query_ring|softmax|value_ring"
)
_OWN_INCLUDE = re.compile(
    rf'#include (?:"([\w./]+\.cuh)"|<(tmaasync/(?:{_STRUCTURED})\.cuh)>)[ \t]*(?://[^\n]*)?\n'
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
    rings = ("ring", "ring_groups", "stage_range", "store_ring")
    headers = (include_dir() / "tmaasync" / f"{name}.cuh" for name in rings)
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
