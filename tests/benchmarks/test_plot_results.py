"""The picture of speeds: against the fastest peer, without outliers, of what was recorded."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from documents.test_documents import DRAWN_WITH_THE_SITE
from result_files import Section, write_section

pytest.importorskip("matplotlib")

TOOL = Path(__file__).resolve().parents[2] / "tools" / "plot_results.py"
MEASURED = {"gpu": "NVIDIA H100 80GB HBM3", "date": "2026-01-01"}


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


def row(case: str, **medians: float) -> dict[str, Any]:
    speeds = {name: {"median": median} for name, median in medians.items()}
    return {"case": case, "us": {}, "speed_over_cudnn": speeds}


ROWS = [
    row("4 x 4096, 16 heads of 128, full", tmaasync=1.1, cudnn=1.0, flash2=0.5),
    row("8 x 2048, 16 heads of 128, full", tmaasync=1.1, cudnn=0.5, flash2=1.0),
    row("1 x 2048, 16 heads of 128, full", tmaasync=5.0, cudnn=1.0, flash2=1.0),
    row("4 x 4096, 16 heads of 128, causal", tmaasync=1.2, cudnn=1.0, flash2=0.5),
]


def test_operations_are_over_their_fastest_peer_and_without_outliers(
    tool: dict[str, Any], tmp_path: Path
) -> None:
    for folder in ("nvidia_h100_80gb_hbm3", "cpu"):
        write_section(tmp_path / folder / "attention.jsonl", Section(MEASURED, ROWS))

    measured = tool["measured_on"](tmp_path)
    figure = tool["speeds_drawn"](measured, tool["DARK"])

    assert list(measured) == ["H100"]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in texts if "H100" in text] == ["1.10x H100", "1.20x H100"]
    assert "Attention, bf16, full" in texts
    # Operations without a measurement have no row.
    assert not any("conv2d" in text for text in texts)


def test_results_of_no_gpu_have_no_picture(tool: dict[str, Any], tmp_path: Path) -> None:
    assert tool["measured_on"](tmp_path) == {}


def test_a_gpu_has_the_name_that_people_use(tool: dict[str, Any]) -> None:
    gpus = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    sections = [Section({"gpu": gpu}, []) for gpu in gpus]

    assert [tool["gpu_name"](section) for section in sections] == ["H200", "H100"]


def test_the_site_gets_both_pictures_of_the_recorded_results(
    tool: dict[str, Any], tmp_path: Path
) -> None:
    tool["draw"](tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{suffix}.svg" for name in DRAWN_WITH_THE_SITE for suffix in ("", "_dark")
    }
    means = tool["means"](tool["measured_on"]())
    assert "Attention, bf16, full, H200: " in means
    for name in ("speed.svg", "speed_dark.svg"):
        assert f"<dc:description>{means}</dc:description>" in (tmp_path / name).read_text()
