"""The command `tmaasync tune`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from ops.test_tune import GPU, OTHER, WIDE, FakeGemm, times, winner
from typer.testing import CliRunner

from tmaasync.cli import app
from tmaasync.ops._gemm import tuned
from tmaasync.ops._tuning import Request

command = importlib.import_module("tmaasync.cli.tune")  # the package has the function there


pytestmark = pytest.mark.usefixtures("folder")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["tune", *arguments])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """A GPU on which `OTHER` is always the fastest; the list has what was asked."""
    asked: list[Request] = []

    def gemm(request: Request) -> FakeGemm:
        asked.append(request)
        problem = WIDE._replace(m=request.m, n=request.n, k=request.k, operands=request.dtype)
        return FakeGemm(times({OTHER: 50.0}), problem)

    monkeypatch.setattr(command, "why_not", lambda: None)
    monkeypatch.setattr(command, "DeviceGemm", gemm)
    return asked


def test_a_shape_is_tuned_shown_kept_and_cleared(device: list[Request], folder: Path) -> None:
    ran = run("4096", "2048", "1024", "--dtype", "float16", "--layout", "nn")
    assert ran.exit_code == 0
    assert device == [Request(4096, 2048, 1024, "float16", "nn")]
    for part in (GPU, "4096 2048 1024 float16 nn", "128x256, groups of 4", "Kept in", " %"):
        assert part in ran.output
    problem = WIDE._replace(n=2048, k=1024, operands="float16")
    assert tuned.tuned_config(GPU, problem) == OTHER
    assert "128x256, groups of 4" in run("--show").output
    assert run("--clear").output == "1 file removed.\n"
    assert list(folder.glob("*")) == []
    assert run("--show").output.startswith("Nothing is kept")


@pytest.mark.usefixtures("device")
def test_json_reports_the_same(folder: Path) -> None:
    report = json.loads(run("4096", "4096", "4096", "--json").stdout)
    assert report["gpu"] == GPU
    assert Path(report["file"]).parent == folder
    (gemm,) = report["gemms"]
    assert gemm.pop("microseconds") < gemm.pop("default_microseconds")
    assert gemm.pop("gain") == pytest.approx(4, rel=0.1)
    assert gemm == {
        **Request(4096, 4096, 4096)._asdict(),
        "tile_config": {
            "consumers": 2,
            "rows": 64,
            "block_n": 256,
            "cluster": 1,
            "group_m": 4,
            "split_k": 1,
            "ping_pong": False,
            "side_by_side": False,
            "over_grid": False,
        },
    }
    shown = json.loads(run("--show", "--json").stdout)
    assert shown["gpus"][GPU][0]["problem"]["m"] == 4096
    assert json.loads(run("--clear", "--json").stdout) == {"files": 1}


def test_shapes_come_from_a_file(device: list[Request], tmp_path: Path) -> None:
    lines = tmp_path / "shapes.txt"
    lines.write_text("# layers\n1 2 3\n\n4 5 6 float16  # halves\n7 8 9 bfloat16 tt\n")
    assert run("--file", str(lines), "--layout", "nn").exit_code == 0
    assert device == [
        (1, 2, 3, "bfloat16", "nn"),
        (4, 5, 6, "float16", "nn"),
        (7, 8, 9, "bfloat16", "tt"),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "0 sides are given"),
        (("1", "2"), "2 sides are given"),
        (("1", "2", "3", "--file", "shapes.txt"), "3 sides are given and a file"),
        (("0", "2", "3"), "M is 0; it must be 1 or more"),
        (("1", "2", "3", "--dtype", "int8"), "dtype is int8; it must be bfloat16 or float16"),
        (("1", "2", "3", "--layout", "kn"), "layout is kn; it must be one of nn, nt, tn, tt"),
        (("--file", "nowhere.txt"), "file is nowhere.txt; it cannot be read"),
        (("--file", "empty.txt"), "file is empty.txt; it has no line of M N K"),
        (("--file", "bad.txt"), "a line is '1 2'; it must be three integers"),
        (("--file", "long.txt"), "a line is '1 2 3 float16 nt x'; it must be three integers"),
    ],
)
@pytest.mark.usefixtures("device")
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"empty": "# none\n", "bad": "1 2\n", "long": "1 2 3 float16 nt x\n"}.items():
        Path(f"{name}.txt").write_text(text)
    ran = run(*arguments)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"error: {sentence}")
    assert ran.stderr.count("\n") == 1


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "why_not", lambda: "there is no CUDA driver on this machine")
    ran = run("1", "2", "3")
    assert ran.exit_code == 2
    assert ran.stderr == (
        "error: there is nothing to measure on: there is no CUDA driver on this machine.\n"
    )


def test_what_is_ignored_is_shown_with_its_reason() -> None:
    path = tuned.keep(GPU, [winner()])
    path.write_text("{")
    assert f"{path.name} is ignored: it cannot be read" in run("--show").output
