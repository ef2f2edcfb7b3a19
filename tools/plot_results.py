"""Draws the pictures of benchmarks/results: ``python tools/plot_results.py``, after recording.

Each is a pair, ``docs/images/NAME.svg`` for light pages and ``NAME_dark.svg`` for dark ones.
``speed`` compares each operation with its best peer, on every GPU that has a folder of results;
``matmul`` shows ops.matmul relative to cuBLAS by size, on the last of these GPUs.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from result_files import RESULTS, Row, Section, sections

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
OURS = "tmaasync"
# Candidates of the rows that are not ours.
PEERS = {"cudnn", "cupy", "flash2", "torch", "torch without fast accumulation"}
# A row this many times faster or slower than the mean of its group is named instead of averaged.
OUTLIER = 1.5
TITLE = "Speed of tmaasync relative to the fastest peer in PyPI"
SUBTITLE = (
    "Bar: geometric mean over the recorded shapes. Dot: one shape. "
    "Right of the line, tmaasync is faster."
)
_TALLEST = 1.45
# Readable on white and on black.
_LINES = ("#2f81f7", "#e08a00", "#2da44e", "#e5534b", "#986ee2", "#9a8265")
_GPU_COLOURS = ("#2f81f7", "#1a9e96", "#986ee2")


@dataclass(frozen=True)
class Theme:
    """Colours of one kind of page."""

    page: str
    ink: str
    faint: str
    line: str


LIGHT = Theme("#ffffff", "#1f2328", "#59636e", "#0969da")
DARK = Theme("none", "#e6edf3", "#9198a1", "#4493f8")


# --- each operation and its best peer ---------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """A bar: the rows of these sections, and the libraries that they are compared with."""

    name: str
    peers: str
    sections: tuple[str, ...]
    counts: Callable[[Row], bool] = lambda _: True


OPERATIONS = (
    Operation("attention", "cuDNN, FlashAttention-2", ("attention",)),
    Operation("varlen attention", "torch varlen_attn", ("varlen_attention",)),
    Operation("bf16 GEMM", "cuBLAS", ("matmul",), lambda row: row["dtype"] == "bfloat16"),
    Operation("fp8 GEMM", "cuBLAS", ("fp8_matmul", "fp8_blockwise_matmul")),
    Operation("grouped GEMM", "torch grouped_mm", ("grouped_matmul",)),
    Operation("conv2d", "cuDNN", ("conv2d",)),
    Operation("strided copy", "CuPy, torch", ("copy",), lambda row: "window" in row["case"]),
)


@dataclass(frozen=True)
class Bar:
    """Speed over the best peer: the mean without outliers, its rows, and the outliers by case."""

    mean: float
    rows: tuple[float, ...]
    outliers: tuple[tuple[str, float], ...]


def speed(row: Row) -> float:
    """Median speed over the fastest peer of the row."""
    ratios = next(value for key, value in row.items() if key.startswith("speed_over_"))
    peers = (ratios[name]["median"] for name in ratios.keys() & PEERS)
    return float(ratios[OURS]["median"]) / max(peers)


def bar(operation: Operation, measured: dict[str, Section]) -> Bar | None:
    """The bar of one operation on one GPU, if it was measured there."""
    speeds = {
        str(row["case"]): speed(row)
        for name in operation.sections
        for row in (measured[name].rows if name in measured else ())
        if "us" in row and operation.counts(row)
    }
    if not speeds:
        return None
    center = geometric_mean(speeds.values())
    usual = {case: one for case, one in speeds.items() if 1 / OUTLIER < one / center < OUTLIER}
    return Bar(
        mean=geometric_mean(usual.values()),
        rows=tuple(usual.values()),
        outliers=tuple((case, one) for case, one in speeds.items() if case not in usual),
    )


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def speeds_drawn(measured: dict[str, dict[str, Section]], theme: Theme) -> Figure:
    """One horizontal bar per operation and GPU, a dot per row, and the outliers in words."""
    bars = {
        gpu: {one.name: found for one in OPERATIONS if (found := bar(one, by_section))}
        for gpu, by_section in measured.items()
    }
    notes = list(_notes(bars))
    below = 0.5 + 0.17 * len(notes)
    height = 0.72 + 0.54 * len(OPERATIONS) + below
    figure = Figure(figsize=(9, height))
    axes = figure.add_axes((0.24, below / height, 0.66, 1 - (0.72 + below) / height))
    _draw_bars(axes, bars, theme)
    _name_operations(axes, theme)
    _write(figure, height - 0.24, TITLE, 12, theme.ink, "bold")
    _write(figure, height - 0.48, SUBTITLE, 8.5, theme.faint)
    for number, note in enumerate(reversed(notes)):
        _write(figure, 0.12 + 0.17 * number, note, 7, theme.faint)
    return figure


def _write(
    figure: Figure, inches: float, text: str, size: float, colour: str, weight: str = "normal"
) -> None:
    """A line of text at this height from the bottom."""
    y = inches / figure.get_figheight()
    figure.text(0.012, y, text, size=size, color=colour, weight=weight, va="center")


def _draw_bars(axes: Axes, bars: dict[str, dict[str, Bar]], theme: Theme) -> None:
    thickness = 0.76 / max(len(bars), 1)
    for number, (gpu, by_name) in enumerate(bars.items()):
        for row, operation in enumerate(OPERATIONS):
            if found := by_name.get(operation.name):
                y = row - 0.38 + (number + 0.5) * thickness
                axes.barh(y, found.mean, thickness * 0.88, color=_GPU_COLOURS[number], zorder=2)
                axes.plot(found.rows, [y] * len(found.rows), ".", c=theme.ink, ms=3, alpha=0.5)
                axes.text(2.46, y, f"{found.mean:.2f}x {gpu}", va="center", size=8, c=theme.ink)


def _name_operations(axes: Axes, theme: Theme) -> None:
    axes.set_ylim(len(OPERATIONS) - 0.45, -0.55)
    axes.set_xlim(0, 2.4)
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1, 1.5, 2])
    axes.set_facecolor("none")
    axes.tick_params(colors=theme.faint, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color=theme.faint, alpha=0.25, lw=0.8)
    axes.set_axisbelow(True)
    axes.axvline(1, color=theme.ink, lw=1.2, zorder=3)
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    for row, operation in enumerate(OPERATIONS):
        point = (0, row)
        axes.annotate(
            operation.name, point, (-8, 1), size=10, weight="bold", color=theme.ink, **where
        )
        axes.annotate(f"over {operation.peers}", point, (-8, -9), size=7, c=theme.faint, **where)


def _notes(bars: dict[str, dict[str, Bar]]) -> Iterator[str]:
    """Yield the outliers by GPU and operation, a line each."""
    for gpu, by_name in bars.items():
        for name, one in by_name.items():
            if one.outliers:
                cases = "; ".join(f"{case}: {ratio:.2f}x" for case, ratio in one.outliers)
                yield f"Not in the mean of {name} on {gpu}: {cases}"


# --- ops.matmul by size -----------------------------------------------------------------------


def is_cube(row: Row) -> bool:
    """Whether M, N and K are equal."""
    return bool(row["m"] == row["n"] == row["k"])


def matmul_drawn(section: Section, theme: Theme) -> Figure:
    """Equal M, N and K on the left; on the right (N, K) of language models, by M."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = [row for row in section.rows if row["dtype"] == "bfloat16"]
    cubes = sorted((row for row in rows if is_cube(row)), key=lambda row: int(row["m"]))
    even = [row for row in cubes if row["m"] % 256 == 0]
    left.plot([row["m"] for row in even], [speed(row) for row in even], "o-", c=theme.line, ms=4)
    for row in cubes:
        if row not in even:
            height = min(speed(row), _TALLEST)
            left.plot(row["m"], height, "o", mfc="none", mec=theme.line, ms=5)
            label = f"{row['m']}: {speed(row):.2f}"
            at = {"textcoords": "offset points", "size": 8, "color": theme.ink}
            left.annotate(label, (row["m"], height), (6, -3), **at)
    others = [row for row in rows if not is_cube(row)]
    right.set_prop_cycle(color=_LINES)
    for shape in sorted({(row["n"], row["k"]) for row in others}):
        line = [row for row in others if (row["n"], row["k"]) == shape]
        right.plot(
            [row["m"] for row in line], [speed(row) for row in line], "o-", ms=3, label=f"{shape}"
        )
    left.set_xlabel("M = N = K", color=theme.ink)
    right.set_xlabel("M, by (N, K)", color=theme.ink)
    right.legend(fontsize=7, ncols=2, frameon=False, labelcolor=theme.ink)
    left.set_ylabel("speed relative to cuBLAS", color=theme.ink)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.axhline(1, color=theme.faint, lw=1)
        axes.set_ylim(0.8, 1.5)
        axes.set_facecolor("none")
        axes.tick_params(which="both", color=theme.faint, labelcolor=theme.ink)
        axes.spines[["bottom", "left"]].set_color(theme.faint)
        axes.spines[["top", "right"]].set_visible(False)
    gpu, date = section.measured["gpu"], section.measured["date"][:10]
    figure.suptitle(f"ops.matmul, bf16, {gpu}, {date}", fontsize=10, color=theme.ink)
    return figure


# --- files ------------------------------------------------------------------------------------


def short_name(gpu: str) -> str:
    """The name that people use: ``H100`` for ``nvidia_h100_80gb_hbm3``.

    >>> short_name("nvidia_h100_80gb_hbm3")
    'H100'
    """
    found = re.search(r"[a-z]+\d+", gpu.removeprefix("nvidia_"))
    return found[0].upper() if found else gpu


def measured_on(results: Path = RESULTS) -> dict[str, dict[str, Section]]:
    """The sections of each GPU, by its short name."""
    measured: dict[str, dict[str, Section]] = {}
    for folder, name, section in sections(results):
        if folder != "cpu":
            measured.setdefault(short_name(folder), {})[name] = section
    return measured


def save(name: str, draw: Callable[[Theme], Figure]) -> None:
    """Write both pictures of a pair."""
    for theme, suffix in ((LIGHT, ""), (DARK, "_dark")):
        draw(theme).savefig(
            IMAGES / f"{name}{suffix}.svg", metadata={"Date": None}, facecolor=theme.page
        )


def main() -> None:
    """Draw both pairs."""
    mpl.rcParams["svg.hashsalt"] = OURS
    measured = measured_on()
    if measured:
        save("speed", lambda theme: speeds_drawn(measured, theme))
    with_matmul = [by_section for by_section in measured.values() if "matmul" in by_section]
    if with_matmul:
        save("matmul", lambda theme: matmul_drawn(with_matmul[-1]["matmul"], theme))


if __name__ == "__main__":
    main()
