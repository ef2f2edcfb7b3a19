"""Several processes, a GPU each: tiles and signals over torch's symmetric memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("symmetric_ring.py")
SECONDS = 120


@pytest.mark.parametrize("build", ["release", "debug"])
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_a_ring_of_processes_passes_tiles_on(processes: int, build: str, tmp_path: Path) -> None:
    if torch.cuda.device_count() < processes:
        pytest.skip(f"a ring of processes needs {processes} GPUs")
    if importlib.util.find_spec("torch.distributed._symmetric_memory") is None:
        pytest.skip("this torch has no symmetric memory")
    store = str(tmp_path / "store")
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(processes), store, build],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        ended = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()

    for out, errors in ended:
        assert out.splitlines()[-1:] == ["right"], errors
