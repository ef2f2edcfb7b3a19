"""Draws docs/images/matmul.svg from benchmarks/results: ops.matmul over cuBLAS, by size."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from result_files import Row, sections

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "matmul.svg"
INK, OURS, FAINT = "#1f2328", "#0969da", "#8c959f"
_TALLEST = 1.45


def ratio(row: Row) -> float:
    """Median speed over cuBLAS."""
    return float(row["speed_over_torch"]["tmaasync"]["median"])


def is_cube(row: Row) -> bool:
    """Whether it is one of the square products."""
    return bool(row["m"] == row["n"] == row["k"])


def drawn(rows: list[Row], title: str) -> Figure:
    """Square products on the left, products with weights on the right."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = [row for row in rows if row["dtype"] == "bfloat16"]
    cubes = sorted((row for row in rows if is_cube(row)), key=lambda row: int(row["m"]))
    even = [row for row in cubes if row["m"] % 256 == 0]
    left.plot([row["m"] for row in even], [ratio(row) for row in even], "o-", c=OURS, ms=4)
    for row in cubes:
        if row not in even:
            height = min(ratio(row), _TALLEST)
            left.plot(row["m"], height, "o", mfc="white", mec=OURS, ms=5)
            label = f"{row['m']}: {ratio(row):.2f}"
            left.annotate(label, (row["m"], height), (5, -3), textcoords="offset points", size=8)
    left.set_xlabel("M = N = K")
    others = [row for row in rows if not is_cube(row)]
    for shape in sorted({(row["n"], row["k"]) for row in others}):
        line = [row for row in others if (row["n"], row["k"]) == shape]
        right.plot(
            [row["m"] for row in line], [ratio(row) for row in line], "o-", ms=3, label=f"{shape}"
        )
    right.set_xlabel("M, by (N, K)")
    right.legend(fontsize=7, ncols=2, frameon=False)
    left.set_ylabel("speed over cuBLAS")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.axhline(1, color=FAINT, lw=1)
        axes.set_ylim(0.8, 1.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10, color=INK)
    return figure


def main() -> None:
    """Draw the picture of the section."""
    mpl.rcParams["svg.hashsalt"] = "tmaasync"
    for _, name, section in sections():
        if name == "matmul":
            measured = section.measured
            title = f"ops.matmul, bf16, {measured['gpu']}, {measured['date'][:10]}"
            drawn(section.rows, title).savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
