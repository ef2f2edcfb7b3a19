"""The text of a shipped kernel in one piece."""

from __future__ import annotations

from tmaasync._sources import find_kernel, kernels_dir


def whole_text(name: str) -> str:
    """The kernel with the headers that lie beside it in the place of their includes."""
    text = find_kernel(name).read_text()
    for header in kernels_dir().glob("*.cuh"):
        body = header.read_text().removeprefix("#pragma once\n")
        text = text.replace(f'#include "{header.name}"\n', body)
    return text
