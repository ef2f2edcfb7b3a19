"""The pytest plugin in pytest runs of its own, with a stand-in for Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
CONFTEST = """
import pytest, triton_stand_in
triton_stand_in.install(pytest.MonkeyPatch())
"""
OF_TRITON = """
import numpy as np, pytest
from triton_stand_in import JITFunction

def softmax(programs):
    x = np.ones((3, 1000), np.float32)
    JITFunction()[(programs,)](x, out := np.zeros_like(x), 1000, BLOCK=1024)
    assert (abs(out - 1e-3) < 1e-6).all()

@pytest.fixture
def launched():
    softmax(3)

MARK
def test_good(launched): softmax(3)

MARK
def test_beyond_the_end(): softmax(4)
"""


def pytest_in(folder: Path, *options: str, **files: str) -> tuple[str, dict[str, int]]:
    """Run pytest in a folder with these files, and return its output and numbers of outcomes."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS / "helpers")])
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "pytest_tmaasync"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    *_, last = ran.stdout.strip().split("\n")
    words = last.replace(",", "").split()
    pairs = zip(words[1:], words, strict=False)
    return ran.stdout, {kind: int(count) for kind, count in pairs if count.isdecimal()}


def test_without_the_option_nothing_is_imported(tmp_path: Path) -> None:
    text = (
        "import sys\ndef test_plain(): assert not {'tmaasync', 'numpy', 'triton'} & {*sys.modules}"
    )
    output, outcomes = pytest_in(tmp_path, test_plain=text)
    assert outcomes.get("passed") == 1, output


@pytest.mark.parametrize("option", [True, False])
def test_triton_runs_on_the_cpu_by_the_option_or_the_marker(tmp_path: Path, option: bool) -> None:
    text = OF_TRITON.replace("MARK", "" if option else "@pytest.mark.tmaasync")
    output, outcomes = pytest_in(
        tmp_path, *(["--tmaasync"] if option else []), conftest=CONFTEST, test_softmax=text
    )
    assert (outcomes.get("passed"), outcomes.get("failed")) == (1, 1), output
    assert "in none of the launch's arrays" in output
    lines = (TESTS / "emulate/ptx_modules/triton_kernels.py").read_text().split("\n")
    line = next(at for at, code in enumerate(lines, 1) if "a = tl.load(x + row" in code)
    assert f"triton_kernels.py:{line}" in output


def test_unmarked_tests_keep_their_schedule_and_gpu(tmp_path: Path) -> None:
    text = """
import pytest
from tmaasync import emulate
from triton_stand_in import NoDriverError, driver

@pytest.mark.tmaasync
def test_marked():
    assert emulate.current_schedule().races is True
    driver.active

def test_unmarked():
    assert emulate.current_schedule().races is not True
    with pytest.raises(NoDriverError):
        driver.active
"""
    output, outcomes = pytest_in(tmp_path, conftest=CONFTEST, test_schedules=text)
    assert outcomes.get("passed") == 2, output


def test_the_option_applies_while_modules_are_imported(tmp_path: Path) -> None:
    text = "from triton_stand_in import driver\ndriver.active\ndef test_it(): pass\n"
    output, outcomes = pytest_in(tmp_path, "--tmaasync", conftest=CONFTEST, test_at_import=text)
    assert outcomes.get("passed") == 1, output
