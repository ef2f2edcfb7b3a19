"""The generated headers are what the generators print."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["generate_wgmma_mma.py", "generate_tcgen05_ld_st.py"])
def test_the_committed_header_is_what_the_generator_prints(name: str) -> None:
    generator = runpy.run_path(str(ROOT / "tools" / name))

    assert generator["HEADER"].read_text() == generator["generate"]()
