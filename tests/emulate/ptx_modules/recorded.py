"""Writes the PTX of a compiler next to the kernels that it comes from."""

from __future__ import annotations

import re
from pathlib import Path


def record(name: str, text: str) -> None:
    """Write a module without blank lines and folders, and with comments around inline PTX alone."""
    text = re.sub(r"[ \t]*//(?! (?:begin|end) inline asm).*", "", text)
    text = re.sub(r'"/?[^"]*/(\w+\.py)"', r'"\1"', text)
    lines = filter(None, map(str.rstrip, text.splitlines()))
    Path(__file__).with_name(f"{name}.ptx").write_text("\n".join(lines) + "\n")
