"""``tmaasync verify``: a verdict on each launch of a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import assert_refused, json_of, run

SCRIPT = """
import sys
import numpy as np
import tmaasync as tma

source = '''extern "C" __global__ void take(int* next, int* out, int defect) {
    if (threadIdx.x % 32) return;
    if (threadIdx.x == 0) printf("of a kernel\\\\n");
    const int ticket = atomicAdd(next, 1);
    if (defect && ticket == 0 && threadIdx.x == 32) while (*(volatile int*)out == 0) {}
}'''
kernel = tma.Kernel(source, "take")
try:
    kernel(1, 64, (np.zeros(1, np.int32), np.zeros(1, np.int32), int(sys.argv[1])))
except tma.EmulatedDeadlock:
    if len(sys.argv) < 3:
        raise
print("done")
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else None)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_clean_script(script: str) -> None:
    ran = run("verify", script, "0")
    assert ran.exit_code == 0, ran.output
    assert "done" in ran.stdout
    assert "take: clean (" in ran.stdout
    verdict = json_of("verify", script, "0")
    assert (verdict["status"], verdict["launches"][0]["unordered"]) == ("clean", 1)


def test_a_violated_script_says_the_order(script: str) -> None:
    ran = run("verify", script, "1")
    assert ran.exit_code == 1
    assert "take: violated" in ran.stdout
    assert "thread 32 of block (0, 0, 0) at kernel.cu:4 goes before thread 0" in ran.stdout
    assert "EmulatedDeadlock" in ran.stdout


@pytest.mark.parametrize(
    ("defect", "own", "code"), [(1, 0, 1), (1, 2, 1), (0, 2, 1), (0, 3, 1), (0, 0, 0)]
)
def test_a_code_of_the_script_hides_no_verdict(
    script: str, defect: int, own: int, code: int
) -> None:
    """A violated launch never gives 0, and a code of the script never looks like a verdict."""
    found = json_of("verify", script, str(defect), str(own), exit_code=code)
    assert found["status"] == ("violated" if defect else "clean")


def test_json_is_all_of_stdout(script: str) -> None:
    command = [sys.executable, "-m", "tmaasync", "verify", script, "0", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["status"] == "clean"
    assert "of a kernel" in ran.stderr
    assert "done" in ran.stderr


def test_a_limit(script: str) -> None:
    assert json_of("verify", script, "0", "--max-runs", "1", exit_code=2)["status"] == "incomplete"


def test_bad_input(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert_refused("file is", "verify", str(empty))
    assert_refused("file is 'none.py'", "verify", "none.py")
    assert_refused("max_runs is 0", "verify", str(empty), "--max-runs", "0")
