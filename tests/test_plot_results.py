"""The picture of speeds: against the fastest peer, without outliers, of what was recorded."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from result_files import Section, write_section

pytest.importorskip("matplotlib")

TOOL = Path(__file__).resolve().parents[1] / "tools" / "plot_results.py"
MEASURED = {"gpu": "NVIDIA H100 80GB HBM3", "date": "2026-01-01"}


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


def row(case: str, **medians: float) -> dict[str, Any]:
    speeds = {name: {"median": median} for name, median in medians.items()}
    return {"case": case, "us": {}, "dtype": "bfloat16", "speed_over_cudnn": speeds}


def bar(tool: dict[str, Any], operation: str, *rows: dict[str, Any]) -> Any:
    (chosen,) = (one for one in tool["OPERATIONS"] if one.name == operation)
    return tool["bar"](chosen, {chosen.sections[0]: Section(MEASURED, list(rows))})


def test_a_speed_is_over_the_fastest_peer_and_not_over_variants_of_ours(
    tool: dict[str, Any],
) -> None:
    medians = {"tmaasync": 1.2, "tmaasync, batched": 3.0, "cudnn": 1.0, "flash2": 1.5}

    assert bar(tool, "attention", row("a", **medians)).mean == pytest.approx(0.8)


def test_an_outlier_is_named_and_not_averaged(tool: dict[str, Any]) -> None:
    speeds = {"a": 1.0, "b": 1.21, "c": 1.1, "d": 1.1, "decode": 5.0, "slow": 0.5}
    rows = [row(case, tmaasync=speed, torch=1.0) for case, speed in speeds.items()]

    found = bar(tool, "bf16 GEMM", *rows)

    assert found.mean == pytest.approx(1.1)
    assert found.outliers == (("decode", 5.0), ("slow", 0.5))


def test_only_strided_copies_count(tool: dict[str, Any]) -> None:
    copies = [row("contiguous", tmaasync=0.9, cupy=1.0), row("window", tmaasync=1.4, cupy=1.0)]

    assert bar(tool, "strided copy", *copies).rows == (1.4,)
    assert bar(tool, "strided copy", copies[0]) is None


def test_a_gpu_that_was_not_measured_is_left_out(tool: dict[str, Any], tmp_path: Path) -> None:
    section = Section(MEASURED, [row("a", tmaasync=1.1, cudnn=1.0)])
    for folder in ("nvidia_h100_80gb_hbm3", "cpu"):
        write_section(tmp_path / folder / "attention.jsonl", section)

    measured = tool["measured_on"](tmp_path)
    figure = tool["speeds_drawn"](measured, tool["DARK"])

    assert list(measured) == ["H100"]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "1.10x H100" in texts
    assert not any("H200" in text for text in texts)
