"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

import tmaasync
from tmaasync._timing import Clocks
from tmaasync.cli import app
from tmaasync.cli._bench_jobs import Job
from tmaasync.cli._demo_emulated import JOBS
from tmaasync.cli._gpu import why_not
from tmaasync.cli.bench import GpuBench
from tmaasync.cli.demo import DemoParts
from tmaasync.errors import BackendError

WITHOUT_GPU = DemoParts(gpu=GpuBench(why_not=lambda: "there is none"))


def run(*arguments: str, on: DemoParts | None = None) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments), obj=on)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The demo leaves its pictures in the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


GPU = DemoParts(
    gpu=GpuBench(
        why_not=lambda: None,
        name=lambda: "Fake",
        prepare=lambda request: Job({"tmaasync": int, "cupy": float}),
        microseconds=lambda run, calls: 200.0 if run is int else 300.0,
        clocks_recorded=lambda: contextlib.nullcontext(Clocks()),
    ),
    repeat_on_gpu=lambda run, arrays: run(*arrays),
    emulated_jobs=JOBS[:1],
)


@pytest.mark.slow
def test_the_demo_begins_with_a_bug_that_the_cpu_finds() -> None:
    ran = run("demo", on=replace(WITHOUT_GPU, emulated_jobs=JOBS[:1]))

    assert ran.exit_code == 0
    first, second = ran.output.split("\n2. ")
    where = "Kernels run on the CPU. Not on the GPU: there is none.\n"
    assert first.startswith(f"tmaasync {tmaasync.__version__}. {where}")
    assert "7     arrived.expect_bytes(64);" in first
    assert "tmaasync.errors.EmulatedDeadlock: corner: every thread waits" in first
    assert "thread 0 at kernel.cu:9:" in first
    assert "[[28 29 30 31  0  0  0  0]" in first
    assert JOBS[0].name in second


def test_the_demo_refuses_a_folder_for_its_pictures_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("demo", "--output", str(tmp_path / "file" / "pictures"), on=WITHOUT_GPU)

    assert ran.exit_code == 2
    assert "it cannot be made (Not a directory). Pass a folder of yours." in ran.stderr
    assert ran.stdout == ""


@pytest.mark.slow
def test_no_screen_of_the_demo_shows_addresses_or_reprs() -> None:
    ran = run("demo", on=replace(WITHOUT_GPU, emulated_jobs=JOBS[:1]))

    assert not re.search("0x[0-9a-f]{4}", ran.output)
    assert "<TMATensorTile" not in ran.output
    assert "TensorMapSpec(" not in ran.output
    assert "Pad that dimension to 1024 bytes." in ran.output


@pytest.mark.slow
def test_without_a_gpu_json_has_the_same_facts() -> None:
    ran = run("demo", "--json", on=replace(WITHOUT_GPU, emulated_jobs=JOBS[:1]))

    document = json.loads(ran.stdout)
    assert ran.exit_code == 0
    assert (document["device"], document["reason"]) == (None, "there is none")
    assert "EmulatedDeadlock" in document["bug"]["message"]
    assert "Pad that dimension to 1024 bytes." in document["error"]


def test_with_neither_a_gpu_nor_a_compiler_the_remedy_is_the_error() -> None:
    nothing = replace(WITHOUT_GPU, why_no_emulator=lambda: "there is no C++ compiler. Install g++.")

    ran = run("demo", on=nothing)

    assert ran.exit_code == 1
    assert "Pad that dimension to 1024 bytes." in ran.stdout
    assert ran.stderr == "error: there is no C++ compiler. Install g++.\n"


@pytest.mark.slow
def test_the_emulated_job_is_checked_and_leaves_pictures(here: Path) -> None:
    ran = run("demo", "--json", "--output", "pictures", on=WITHOUT_GPU)

    document = json.loads(ran.stdout)
    assert [case["name"] for case in document["emulated"]] == [job.name for job in JOBS]
    assert {case["error"] for case in document["emulated"] if case["tolerance"] == 0} == {0}
    names = {"timeline.json", "swizzle.svg"}
    if importlib.util.find_spec("matplotlib"):
        names.add("timeline.png")
    assert {path.name for path in (here / "pictures").iterdir()} == names
    assert {Path(path).name for path in document["pictures"]["files"]} == names
    assert json.loads((here / "pictures/timeline.json").read_text())["traceEvents"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_the_demo_says_so_and_goes_on(here: Path) -> None:
    ran = run("demo", on=replace(WITHOUT_GPU, emulated_jobs=JOBS[:1]))

    assert ran.exit_code == 0
    assert "No timeline.png: plot draws with matplotlib" in ran.output
    assert "tmaasync-demo/swizzle.svg" in ran.output
    assert (here / "tmaasync-demo/timeline.json").exists()


@pytest.mark.slow
def test_with_a_gpu_the_emulator_is_compared_to_it() -> None:
    assert "equal" in run("demo", on=GPU).output

    ran = run("demo", on=replace(GPU, repeat_on_gpu=lambda run, arrays: run(*arrays) + 1))
    assert ran.exit_code == 1
    assert ran.stderr.endswith("error: differs from its reference: copy 7x33x5x64 fp32\n")


def test_with_a_gpu_and_no_compiler_the_emulator_is_left_out() -> None:
    gpu = replace(GPU, why_no_emulator=lambda: "there is no C++ compiler")

    ran = run("demo", on=gpu)

    assert ran.exit_code == 0
    assert "Kernels run on the GPU. Not on the CPU: there is no C++ compiler.\n" in ran.output


def test_why_there_is_no_gpu_is_one_line() -> None:
    def absent(_: int) -> NoReturn:
        raise BackendError("there is no driver. Install one.\nIt said: no")

    assert why_not(absent) == "there is no driver"


@pytest.mark.slow
def test_with_a_gpu_operations_are_timed_next_to_other_libraries() -> None:
    ran = run("demo", on=GPU)

    assert ran.exit_code == 0
    assert "matmul 4096 x 4096 x 4096 bfloat16 on Fake" in ran.output
    assert ran.output.count("1.500 x") == 3 * 3


@pytest.mark.slow
def test_with_a_gpu_json_has_every_figure() -> None:
    document = json.loads(run("demo", "--json", on=GPU).stdout)

    assert document["device"] == "Fake"
    assert [one["operation"] for one in document["timed"]] == ["copy", "matmul", "attention"]
    assert document["timed"][0]["contestants"]["tmaasync"]["microseconds"] == 200.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arguments", [("demo",), ("demo", "--json")])
def test_a_wrong_result_fails_the_demo(arguments: tuple[str, ...]) -> None:
    wrong = replace(JOBS[0], wanted=lambda source: source[..., :64] + 1)

    ran = run(*arguments, on=replace(GPU, emulated_jobs=(wrong,)))

    assert ran.exit_code == 1
    assert ran.stderr.endswith("error: differs from its reference: copy 7x33x5x64 fp32\n")


def test_an_error_of_ours_is_a_message_and_no_traceback() -> None:
    def fail() -> NoReturn:
        raise BackendError("there is no NVRTC. Install it.")

    ran = run("demo", on=replace(WITHOUT_GPU, find_bug=fail))

    assert ran.exit_code == 1
    assert ran.stderr == "error: there is no NVRTC. Install it.\n"


def test_an_error_that_is_not_ours_keeps_its_traceback() -> None:
    def fail() -> NoReturn:
        raise ZeroDivisionError

    ran = run("demo", on=replace(WITHOUT_GPU, find_bug=fail))

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
    document = json.loads(ran.stdout)
    assert len(document["timed"]) == 3
    assert all(case["gpu_difference"] is not None for case in document["emulated"])


@pytest.mark.parametrize("command", [(), ("trace",), ("doctor",), ("lint",)])
def test_the_help_of_a_flag_asks_for_no_value(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help").output
    assert "--help" in shown
    assert "bool" not in shown
