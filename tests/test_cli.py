"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

import tmaasync
from tmaasync.cli import app
from tmaasync.cli._demo_emulated import JOBS
from tmaasync.cli._demo_gpu import Case, GpuReport, why_not
from tmaasync.cli.demo import DemoParts
from tmaasync.errors import BackendError

WITHOUT_GPU = DemoParts(why_no_gpu=lambda: "there is none")


def run(*arguments: str, on: DemoParts | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), obj=on)


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


def with_gpu(*cases: Case) -> DemoParts:
    """A GPU whose cases end like this."""
    return DemoParts(
        why_no_gpu=lambda: None,
        on_gpu=lambda: GpuReport(device="Fake", cases=cases),
        repeat_on_gpu=lambda run, arrays: run(*arrays),
        emulated_jobs=JOBS[:1],
    )


def test_without_a_gpu_the_demo_says_so_and_shows_what_needs_none() -> None:
    ran = run("demo", on=WITHOUT_GPU)

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


def test_without_a_gpu_json_tells_the_same() -> None:
    ran = run("demo", "--json", on=WITHOUT_GPU)

    told = json.loads(ran.stdout)
    assert ran.exit_code == 0
    assert (told["device"], told["reason"]) == (None, "there is none")
    assert [kernel["kernel"] for kernel in told["kernels"]] == ["copy", "copy", "gemm"]
    assert {kernel["spill_bytes"] for kernel in told["kernels"]} == {0}


def test_the_emulated_job_is_checked_and_leaves_pictures(here: Path) -> None:
    ran = run("demo", "--json", "--output", "pictures", on=WITHOUT_GPU)

    told = json.loads(ran.stdout)
    assert [case["name"] for case in told["emulated"]] == [job.name for job in JOBS]
    assert {case["error"] for case in told["emulated"] if case["tolerance"] == 0} == {0}
    names = {"timeline.json", "swizzle.svg"}
    if importlib.util.find_spec("matplotlib"):
        names.add("timeline.png")
    assert {path.name for path in (here / "pictures").iterdir()} == names
    assert {Path(path).name for path in told["pictures"]["files"]} == names
    assert json.loads((here / "pictures/timeline.json").read_text())["traceEvents"]


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_the_demo_says_so_and_goes_on(here: Path) -> None:
    ran = run("demo", on=replace(WITHOUT_GPU, emulated_jobs=JOBS[:1]))

    assert ran.exit_code == 0
    assert "No timeline.png: plot draws with matplotlib" in ran.output
    assert "tmaasync-demo/swizzle.svg" in ran.output
    assert (here / "tmaasync-demo/timeline.json").exists()


def test_with_a_gpu_the_emulator_is_compared_to_it() -> None:
    gpu = with_gpu(case())

    assert "equal" in run("demo", on=gpu).output

    ran = run("demo", on=replace(gpu, repeat_on_gpu=lambda run, arrays: run(*arrays) + 1))
    assert ran.exit_code == 1
    assert ran.stderr.endswith("error: differs from its reference: copy 1 MiB\n")


def test_with_a_gpu_and_no_compiler_the_emulator_is_left_out() -> None:
    gpu = replace(with_gpu(case()), why_no_emulator=lambda: "there is no C++ compiler")

    ran = run("demo", on=gpu)

    assert ran.exit_code == 0
    assert "Not on the CPU too: there is no C++ compiler." in ran.output


def test_why_there_is_no_gpu_is_one_line() -> None:
    def absent(_: int) -> NoReturn:
        raise BackendError("there is no driver. Install one.\nIt said: no")

    assert why_not(absent) == "there is no driver"


def test_with_a_gpu_every_case_is_a_line() -> None:
    other = case(name="matmul", speed_over_cupy=None, error=2e-3, tolerance=4e-3)

    ran = run("demo", on=with_gpu(case(), other))

    assert ran.exit_code == 0
    copy, matmul = (line for line in ran.output.splitlines() if "1 GiB" in line)
    assert copy.split() == ["copy", "1", "GiB", "500.0", "us", "4.2", "TB/s", "1.010", "exact"]
    assert matmul.split()[-2:] == ["-", "2.0e-03"]


def test_with_a_gpu_json_has_every_figure() -> None:
    told = json.loads(run("demo", "--json", on=with_gpu(case())).stdout)

    assert told["device"] == "Fake"
    assert told["cases"][0]["rate"] == 4.2


@pytest.mark.parametrize("arguments", [("demo",), ("demo", "--json")])
def test_a_wrong_result_fails_the_demo(arguments: tuple[str, ...]) -> None:
    ran = run(*arguments, on=with_gpu(case(error=0.25, passed=False)))

    assert ran.exit_code == 1
    assert ran.stderr.endswith("error: differs from its reference: copy 1 GiB\n")


def test_an_error_of_ours_is_a_message_and_no_traceback() -> None:
    def fail() -> NoReturn:
        raise BackendError("there is no NVRTC. Install it.")

    ran = run("demo", on=replace(WITHOUT_GPU, on_host=fail))

    assert ran.exit_code == 1
    assert ran.stderr == "error: there is no NVRTC. Install it.\n"


def test_an_error_that_is_not_ours_keeps_its_traceback() -> None:
    def fail() -> NoReturn:
        raise ZeroDivisionError

    ran = run("demo", on=replace(WITHOUT_GPU, on_host=fail))

    assert isinstance(ran.exception, ZeroDivisionError)


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
