"""The text of a shipped kernel in one piece."""

from __future__ import annotations

import re
from pathlib import Path

from tmaasync._sources import find_kernel, include_dir

_STRUCTURED = "ring|roles|scheduler|mainloop|epilogue|epilogue_ops|split_k"
_OWN_INCLUDE = re.compile(rf'#include (?:"([\w./]+\.cuh)"|<(tmaasync/(?:{_STRUCTURED})\.cuh)>)\n')
_NAMES = re.compile(
    r"^(?:struct|class|enum class|constexpr int) (?:\[\[\w+\]\] )?(\w+)", re.MULTILINE
)


def whole_text(name: str) -> str:
    """Return the kernel's text, with its family's and the structured headers inlined."""
    return _renamed_ring() + _inlined(find_kernel(name), set())


def _renamed_ring() -> str:
    # The host's preamble has included the ring itself.
    names = dict.fromkeys(_NAMES.findall((include_dir() / "tmaasync" / "ring.cuh").read_text()))
    return "".join(f"#define {name} Inlined{name}\n" for name in names)


def _inlined(path: Path, seen: set[Path]) -> str:
    def text_of(include: re.Match[str]) -> str:
        own, library = include.groups()
        header = (path.parent / own).resolve() if own else include_dir() / library
        if header in seen:
            return ""
        seen.add(header)
        return _inlined(header, seen)

    return _OWN_INCLUDE.sub(text_of, path.read_text().removeprefix("#pragma once\n"))
