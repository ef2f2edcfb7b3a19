"""Draws the pictures of benchmarks/results: docs/conf.py calls `draw` when it builds the site.

Each is a pair, ``NAME.svg`` for light pages and ``NAME_dark.svg`` for dark ones. They are not in
the repository; ``python tools/plot_results.py`` draws them into ``docs/images``. ``speed`` shows
the table of the README: each operation over its fastest peer, on every GPU that has a folder of
results; ``matmul`` shows ops.matmul relative to cuBLAS by size, on the first of these GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from result_files import RESULTS, Row, Section, sections
from write_tables import OPERATIONS, Group, Operation, gpu_name

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
OURS = "tmaasync"
TITLE = "Speed of tmaasync relative to the fastest peer in PyPI"
SUBTITLE = (
    "Bar: geometric mean over the recorded cases. Dot: a case; circle: an outlier, not in the "
    "mean. Right of the line tmaasync is faster."
)
# Inches: the title, a row, the numbers below. Then the end of the axis.
_ABOVE, _ROW, _BELOW, _MOST = 0.65, 0.44, 0.3, 2.3
_TALLEST = 1.45
# Readable on white and on black.
_LINES = ("#2f81f7", "#e08a00", "#2da44e", "#e5534b", "#986ee2", "#9a8265")
_GPU_COLOURS = ("#1a9e96", "#2f81f7", "#986ee2")


@dataclass(frozen=True)
class Theme:
    """Colours of one kind of page."""

    page: str
    ink: str
    faint: str
    line: str


LIGHT = Theme("#ffffff", "#1f2328", "#59636e", "#0969da")
DARK = Theme("none", "#e6edf3", "#9198a1", "#4493f8")


# --- each operation and its fastest peer ------------------------------------------------------


def speeds_drawn(measured: dict[str, dict[str, Section]], theme: Theme) -> Figure:
    """One row per operation of the README's table, in it a bar per GPU and a dot per case."""
    drawn = [
        (operation, groups)
        for operation in OPERATIONS
        if operation.is_short and (groups := groups_of(operation, measured))
    ]
    height = _ABOVE + _ROW * len(drawn) + _BELOW
    figure = Figure(figsize=(9, height))
    axes = figure.add_axes((0.31, _BELOW / height, 0.59, _ROW * len(drawn) / height))
    _frame(axes, len(drawn), theme)
    gpus = list(measured)
    for row, (operation, groups) in enumerate(drawn):
        _name(axes, row, operation, theme)
        for gpu, group in groups.items():
            thickness = 0.8 / len(gpus)
            y = row - 0.4 + (gpus.index(gpu) + 0.5) * thickness
            colour = _GPU_COLOURS[gpus.index(gpu) % len(_GPU_COLOURS)]
            _draw(axes, y, thickness * 0.88, group, colour, theme)
            text = f"{group.mean:.2f}x {gpu}"
            axes.text(_MOST + 0.04, y, text, va="center", size=7.5, c=theme.ink)
    for number, (text, size, colour) in enumerate(
        ((TITLE, 12, theme.ink), (SUBTITLE, 8, theme.faint))
    ):
        y = 1 - (0.22 + 0.24 * number) / height
        weight = "normal" if number else "bold"
        figure.text(0.012, y, text, size=size, color=colour, weight=weight, va="center")
    return figure


def groups_of(operation: Operation, measured: dict[str, dict[str, Section]]) -> dict[str, Group]:
    """Return the cases of the operation on each GPU on which it was measured."""
    found = {}
    for gpu, by_section in measured.items():
        section = by_section.get(operation.section)
        rows = operation.members(section) if section else []
        if rows:
            found[gpu] = Group.of(operation, rows)
    return found


def _draw(axes: Axes, y: float, thickness: float, group: Group, colour: str, theme: Theme) -> None:
    """Draw the mean as a bar, its cases as dots, and outliers as circles, at most at the edge."""
    axes.barh(y, group.mean, thickness, color=colour)
    for values, face in ((group.ratios.values(), theme.ink), (group.outliers.values(), "none")):
        at = [min(value, _MOST - 0.02) for value in values]
        axes.plot(at, [y] * len(at), "o", mfc=face, mec=theme.ink, mew=0.5, ms=2.2, alpha=0.6)


def _frame(axes: Axes, rows: int, theme: Theme) -> None:
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlim(0, _MOST)
    axes.set_yticks([])
    axes.set_xticks([0, 0.5, 1, 1.5, 2])
    axes.set_facecolor("none")
    axes.tick_params(colors=theme.faint, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color=theme.faint, alpha=0.25, lw=0.8)
    axes.set_axisbelow(True)
    axes.axvline(1, color=theme.ink, lw=1.2, zorder=3)


def _name(axes: Axes, row: int, operation: Operation, theme: Theme) -> None:
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    for text, below, size, colour in (
        (operation.name, 1, 8.5, theme.ink),
        (f"over {operation.peer}", -9, 6.5, theme.faint),
    ):
        axes.annotate(text, (0, row), (-8, below), size=size, color=colour, **where)


# --- ops.matmul by size -----------------------------------------------------------------------


def speed(row: Row) -> float:
    """Median speed over cuBLAS."""
    return float(row["speed_over_torch"][OURS]["median"])


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


def measured_on(results: Path = RESULTS) -> dict[str, dict[str, Section]]:
    """The sections of each GPU, by its name; the H200 comes first."""
    measured: dict[str, dict[str, Section]] = {}
    for folder, name, section in sections(results):
        if folder not in ("cpu", "compiled"):
            measured.setdefault(gpu_name(section), {})[name] = section
    return dict(sorted(measured.items(), reverse=True))


def means(measured: dict[str, dict[str, Section]]) -> str:
    """The figures of ``speed``, which its file has as its description."""
    return "; ".join(
        f"{operation.name}, {gpu}: {group.mean:.2f}"
        for operation in OPERATIONS
        if operation.is_short
        for gpu, group in groups_of(operation, measured).items()
    )


def _save(path: Path, draw: Callable[[Theme], Figure], description: str | None = None) -> None:
    """Write both pictures of a pair."""
    metadata = {"Date": None, "Description": description}
    for theme, suffix in ((LIGHT, ""), (DARK, "_dark")):
        file = path.with_name(f"{path.name}{suffix}.svg")
        draw(theme).savefig(file, metadata=metadata, facecolor=theme.page)


def draw(folder: Path = IMAGES) -> None:
    """Draw both pairs."""
    mpl.rcParams["svg.hashsalt"] = OURS
    measured = measured_on()
    if measured:
        _save(folder / "speed", lambda theme: speeds_drawn(measured, theme), means(measured))
    with_matmul = [by_section for by_section in measured.values() if "matmul" in by_section]
    if with_matmul:
        _save(folder / "matmul", lambda theme: matmul_drawn(with_matmul[0]["matmul"], theme))


if __name__ == "__main__":
    draw()
