"""The examples run: the tutorial on NumPy arrays, or with ``--gpu`` on CuPy arrays.

Each checks its own result and ends with ``SystemExit`` if that is wrong. The tutorial's pages quote
what the examples print, and what they print once changed: a ``diff`` block is a change to the
example, a ``text`` block the message after the changes since the block before, and a ``console``
block the output after them.
"""

from __future__ import annotations

import doctest
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tmaasync import ArgumentError, Kernel, emulate

ROOT = Path(__file__).resolve().parents[2]
UNDER_TORCHRUN = {"tensor_parallel_mlp"}
ALL = [
    pytest.param(path, id=path.stem)
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.stem not in UNDER_TORCHRUN
]
STEPS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
TUTORIAL = [pytest.param(path, id=path.stem) for path in STEPS]
FOR_BLACKWELL = {"10_tensor_memory", "11_tensor_memory_gemm"}
STRUCTURED = [
    pytest.param(ROOT / "examples" / f"{name}.py", id=name)
    for name in ("07_gemm", "08_ragged_attention")
]
_PRINTS = re.compile(r"^```console\n\$ python examples/(\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CHANGED = re.compile(r"^```(diff|text|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")


def page_of(path: Path) -> str:
    return (ROOT / "docs" / "tutorial" / f"{path.stem}.md").read_text()


def matches(wanted: str, printed: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(wanted, printed, flags)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", TUTORIAL)
def test_a_step_runs_on_the_emulator_and_prints_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(path, monkeypatch)

    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1
    name, wanted = _PRINTS.findall(page_of(path))[0]
    assert name == path.name
    assert matches(wanted, printed), printed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", STRUCTURED)
def test_a_structured_step_has_no_race_in_an_adversarial_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulate.scheduled("adversarial", races=True):
        run(path, monkeypatch)


@pytest.mark.slow
def test_ring_attention_runs_on_emulated_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(ROOT / "examples" / "ring_attention.py", monkeypatch)

    assert "256 positions on 2 devices" in capsys.readouterr().out


def changes_before(wanted: str) -> Iterator[Any]:
    """A step of the tutorial, its changes, and the block of this kind that follows them."""
    for path in STEPS:
        changes: list[str] = []
        for number, (kind, text) in enumerate(_CHANGED.findall(page_of(path))):
            if kind == "diff":
                changes.append(text)
                continue
            if kind == wanted and changes:
                yield pytest.param(path, tuple(changes), text, id=f"{path.stem}-{number}")
            changes = []


def changed(source: str, diff: str) -> str:
    """A source with one change, or as it is if the change is to another file."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    assert source.count(old) <= 1
    return source.replace(old, new)


def write_changed(path: Path, changes: tuple[str, ...], folder: Path) -> Path:
    """Write the step with its changes, each of which must be to one of its files."""
    applied = 0
    for original in (path, path.with_suffix(".cu")):
        source = original.read_text()
        for diff in changes:
            applied += changed(source, diff) != source
            source = changed(source, diff)
        (folder / original.name).write_text(source)
    assert applied == len(changes)
    return folder / path.name


@pytest.mark.parametrize(("path", "changes", "block"), list(changes_before("console")))
def test_a_changed_step_prints_what_its_page_says(
    path: Path,
    changes: tuple[str, ...],
    block: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run(write_changed(path, changes, tmp_path), monkeypatch)

    wanted = block.partition("\n")[2]
    printed = capsys.readouterr().out
    assert matches(wanted, printed), printed


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("path", "changes", "message"), list(changes_before("text")))
def test_a_broken_step_prints_what_its_page_says(
    path: Path,
    changes: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with pytest.raises((Exception, SystemExit)) as raised:
        run(write_changed(path, changes, tmp_path), monkeypatch)

    printed = f"{type(raised.value).__name__}: {raised.value}\n"
    assert matches(message, printed), printed


@pytest.mark.parametrize("path", TUTORIAL)
def test_a_step_notices_a_kernel_that_does_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch_nothing(kernel: Kernel, **_: Any) -> None:
        assert kernel.name

    monkeypatch.setattr(Kernel, "__call__", launch_nothing)
    monkeypatch.setattr(Kernel, "prepare", lambda *_, **__: lambda: None)

    with pytest.raises(SystemExit, match="wrong"):
        run(path, monkeypatch)


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("path", ALL)
def test_an_example_runs_on_a_gpu_or_names_its_architecture(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy")
    if path.stem in FOR_BLACKWELL:
        with pytest.raises(ArgumentError, match="does not run code for sm_100a"):
            run(path, monkeypatch, "--gpu")
        return

    run(path, monkeypatch, "--gpu")


@pytest.mark.parametrize("path", TUTORIAL)
def test_a_step_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 70
    assert len(path.with_suffix(".cu").read_text().splitlines()) <= 180
