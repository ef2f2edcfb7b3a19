"""What `make false-alarms` repeats finds memory as the first run did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("case", "launches"),
    [
        pytest.param("examples/09_peers", 4, id="launches of several devices, and their signals"),
        pytest.param("matmul float8", 1, id="an operation"),
        pytest.param("docs/kernels", 2, id="a __device__ variable that a launch counts in"),
    ],
)
def test_repeated_launches_find_memory_as_the_first_did(case: str, launches: int) -> None:
    tool = ROOT / "tools" / "search_false_alarms.py"
    command = [sys.executable, str(tool), "--seeds", "2", "--cases", case]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith(f"{case}: {launches} launches")
