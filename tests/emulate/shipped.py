"""The text of a shipped kernel in one piece."""

from __future__ import annotations

import re
from pathlib import Path

from tmaasync._sources import find_kernel

_OWN_INCLUDE = re.compile(r'#include "([\w./]+\.cuh)"\n')


def whole_text(name: str) -> str:
    """Return the kernel's text, its family's headers inlined where each is first included."""
    return _inlined(find_kernel(name), set())


def _inlined(path: Path, seen: set[Path]) -> str:
    def text_of(include: re.Match[str]) -> str:
        header = (path.parent / include[1]).resolve()
        if header in seen:
            return ""
        seen.add(header)
        return _inlined(header, seen)

    return _OWN_INCLUDE.sub(text_of, path.read_text().removeprefix("#pragma once\n"))
