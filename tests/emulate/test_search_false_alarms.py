"""What `make false-alarms` repeats finds memory as the first run did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_repeated_launches_find_memory_as_the_first_did() -> None:
    # A kernel with a variable that a launch counts in.
    tool, case = ROOT / "tools" / "search_false_alarms.py", "docs/kernels"
    command = [sys.executable, str(tool), "--seeds", "2", "--cases", case]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith(f"{case}: 1 launches")
