"""The text of a shipped kernel in one piece."""

from __future__ import annotations

import re

from tmaasync._sources import find_kernel, kernels_dir


def whole_text(name: str) -> str:
    """The kernel with the headers that lie beside it in the place of their includes."""
    return _OWN_INCLUDE.sub(lambda found: whole_text(found[1]), _text(name))


_OWN_INCLUDE = re.compile(r'#include "(\w+\.cuh)"\n')


def _text(name: str) -> str:
    path = find_kernel(name) if name.endswith(".cu") else kernels_dir() / name
    return path.read_text().removeprefix("#pragma once\n")
