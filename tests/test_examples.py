"""The examples run: the tutorial on NumPy arrays, or with ``--gpu`` on CuPy arrays.

Each checks its own result and ends with ``SystemExit`` if that is wrong.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tmaasync import Kernel

FOLDER = Path(__file__).resolve().parents[1] / "examples"
ALL = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.py"))]
TUTORIAL = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("[0-9][0-9]_*.py"))]


def run(path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", TUTORIAL)
def test_a_step_runs_on_the_emulator_and_prints_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(path, monkeypatch)

    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("path", TUTORIAL)
def test_a_step_notices_a_kernel_that_does_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch_nothing(kernel: Kernel, **_: Any) -> None:
        assert kernel.name

    monkeypatch.setattr(Kernel, "__call__", launch_nothing)

    with pytest.raises(SystemExit, match="wrong"):
        run(path, monkeypatch)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("path", ALL)
def test_an_example_runs_on_a_gpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy")

    run(path, monkeypatch, "--gpu")


@pytest.mark.parametrize("path", TUTORIAL)
def test_a_step_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 65
    assert len(path.with_suffix(".cu").read_text().splitlines()) <= 170
