"""CUDA's libraries stand on the emulator's own headers, which include none of them."""

from __future__ import annotations

import re

from tmaasync.emulate.include_path import DEVICE_DIR, EMULATOR_DIR

FOREIGN = EMULATOR_DIR / "foreign"
INCLUDED = re.compile(r"#\s*include(?:_next)?\s*<([^>]+)>")


def test_headers_of_the_device_include_none_of_the_libraries() -> None:
    files = [path for path in DEVICE_DIR.rglob("*") if path.is_file()]
    names = {name for path in files for name in INCLUDED.findall(path.read_text(encoding="utf-8"))}

    assert "nv/target" in names
    others = [name for name in names if not (DEVICE_DIR / name).is_file()]
    libraries = (FOREIGN, FOREIGN / "cccl")
    assert [name for name in others if any((one / name).is_file() for one in libraries)] == []
