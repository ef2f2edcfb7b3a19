"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tmaasync
from tmaasync.cli import _demo_emulated, _demo_gpu, _demo_host, app
from tmaasync.cli._demo_gpu import Case, GpuReport
from tmaasync.errors import BackendError


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def case(**changed: Any) -> Case:
    values = {
        "name": "copy",
        "size": "1 GiB",
        "microseconds": 500.0,
        "rate": 4.2,
        "unit": "TB/s",
        "speed_over_cupy": 1.01,
        "error": 0.0,
        "tolerance": 0.0,
        "passed": True,
    }
    return Case(**{**values, **changed})


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The demo leaves its pictures in the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_demo_gpu, "why_not", lambda: "there is none")


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """A GPU whose cases are what the test puts into the list."""
    cases: list[Case] = []
    monkeypatch.setattr(_demo_gpu, "why_not", lambda: None)
    monkeypatch.setattr(_demo_gpu, "run", lambda: GpuReport(device="Fake", cases=tuple(cases)))
    monkeypatch.setattr(_demo_gpu, "repeat", lambda run, arrays: run(*arrays))
    monkeypatch.setattr(_demo_emulated, "JOBS", _demo_emulated.JOBS[:1])
    return cases


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_demo_says_so_and_shows_what_needs_none() -> None:
    ran = run("demo")

    assert ran.exit_code == 0
    assert ran.output.startswith("No Hopper GPU to use: there is none.")
    for part in (
        "<TMATensorTile 128x128 of float16 [1000x512]",
        "shape=(1000, 512), strides_bytes=(1024,), box_shape=(128, 64)",
        "Pad that dimension to 1024 bytes.",
        "128 | 1.1 1.0 1.3 1.2",
        "gemm    bf16",
    ):
        assert part in ran.output


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_json_tells_the_same() -> None:
    ran = run("demo", "--json")

    told = json.loads(ran.stdout)
    assert ran.exit_code == 0
    assert (told["device"], told["reason"]) == (None, "there is none")
    assert [kernel["kernel"] for kernel in told["kernels"]] == ["copy", "copy", "gemm"]
    assert {kernel["spill_bytes"] for kernel in told["kernels"]} == {0}


@pytest.mark.usefixtures("no_gpu")
def test_the_emulated_job_is_checked_and_leaves_pictures(here: Path) -> None:
    ran = run("demo", "--json", "--output", "pictures")

    told = json.loads(ran.stdout)
    assert [case["name"] for case in told["emulated"]] == [job.name for job in _demo_emulated.JOBS]
    assert {case["error"] for case in told["emulated"] if case["tolerance"] == 0} == {0}
    names = {"timeline.json", "swizzle.svg"}
    if importlib.util.find_spec("matplotlib"):
        names.add("timeline.png")
    assert {path.name for path in (here / "pictures").iterdir()} == names
    assert {Path(path).name for path in told["pictures"]["files"]} == names
    assert json.loads((here / "pictures/timeline.json").read_text())["traceEvents"]


@pytest.mark.usefixtures("no_gpu")
def test_without_matplotlib_the_demo_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.setattr(_demo_emulated, "JOBS", _demo_emulated.JOBS[:1])
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "matplotlib" else find_spec(name, *more),
    )

    ran = run("demo")

    assert ran.exit_code == 0
    assert "No timeline.png: plot draws with matplotlib" in ran.output
    assert "tmaasync-demo/swizzle.svg" in ran.output
    assert (here / "tmaasync-demo/timeline.json").exists()


def test_with_a_gpu_the_emulator_is_compared_to_it(
    fake_gpu: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.append(case())

    assert "equal" in run("demo").output

    monkeypatch.setattr(_demo_gpu, "repeat", lambda run, arrays: run(*arrays) + 1)
    ran = run("demo")
    assert ran.exit_code == 1
    assert ran.stderr.endswith("error: differs from its reference: copy 1 MiB\n")


def test_with_a_gpu_and_no_compiler_the_emulator_is_left_out(
    fake_gpu: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.append(case())
    monkeypatch.setattr(_demo_emulated, "why_not", lambda: "there is no C++ compiler")

    ran = run("demo")

    assert ran.exit_code == 0
    assert "Not on the CPU too: there is no C++ compiler." in ran.output


def test_why_there_is_no_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: int) -> None:
        raise BackendError("there is no driver. Install one.\nIt said: no")

    monkeypatch.setattr("tmaasync._driver.require_device", absent)

    assert _demo_gpu.why_not() == "there is no driver"


def test_with_a_gpu_every_case_is_a_line(fake_gpu: list[Case]) -> None:
    fake_gpu.append(case())
    fake_gpu.append(case(name="matmul", speed_over_cupy=None, error=2e-3, tolerance=4e-3))

    ran = run("demo")

    assert ran.exit_code == 0
    copy, matmul = (line for line in ran.output.splitlines() if "1 GiB" in line)
    assert copy.split() == ["copy", "1", "GiB", "500.0", "us", "4.2", "TB/s", "1.010", "exact"]
    assert matmul.split()[-2:] == ["-", "2.0e-03"]


def test_with_a_gpu_json_has_every_figure(fake_gpu: list[Case]) -> None:
    fake_gpu.append(case())

    told = json.loads(run("demo", "--json").stdout)

    assert told["device"] == "Fake"
    assert told["cases"][0]["rate"] == 4.2


@pytest.mark.parametrize("arguments", [("demo",), ("demo", "--json")])
def test_a_wrong_result_fails_the_demo(fake_gpu: list[Case], arguments: tuple[str, ...]) -> None:
    fake_gpu.append(case(error=0.25, passed=False))

    ran = run(*arguments)

    assert ran.exit_code == 1
    assert ran.stderr.endswith("error: differs from its reference: copy 1 GiB\n")


@pytest.mark.usefixtures("no_gpu")
def test_an_error_of_ours_is_a_message_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BackendError("there is no NVRTC. Install it.")

    monkeypatch.setattr(_demo_host, "run", fail)

    ran = run("demo")

    assert ran.exit_code == 1
    assert ran.stderr == "error: there is no NVRTC. Install it.\n"


@pytest.mark.usefixtures("no_gpu")
def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_demo_host, "run", lambda: 1 / 0)

    assert isinstance(run("demo").exception, ZeroDivisionError)


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tmaasync", "--version"], check=True, capture_output=True, text=True
    )

    assert ran.stdout == f"tmaasync {tmaasync.__version__}\n"


@pytest.mark.gpu
@pytest.mark.hopper
def test_the_demo_passes_on_a_gpu() -> None:
    pytest.importorskip("cupy")

    ran = run("demo", "--json")

    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert all(case["passed"] for case in told["cases"])
    assert {case["name"] for case in told["cases"]} == {
        "copy",
        "copy window",
        "matmul bfloat16",
        "matmul float16",
    }
