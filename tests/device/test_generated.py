"""The generated header is what the generator prints."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_committed_wgmma_header_is_what_the_generator_prints() -> None:
    generator = runpy.run_path(str(ROOT / "tools" / "generate_wgmma_mma.py"))

    assert generator["HEADER"].read_text() == generator["generate"]()
