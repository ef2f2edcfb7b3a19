"""Pictures of chunks in shared memory: SVG as text, PNG by matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tmaasync.cli._chunks import CHUNKS_PER_LINE, Chunk
from tmaasync.errors import ArgumentError

__all__ = ["COLOURS", "save_png", "svg"]

# One colour per chunk of a row; dark text stays readable on all of them.
COLOURS = (
    "#9ecae9", "#f4c95d", "#a6d8a8", "#f2a7a0", "#cdb4e3", "#e8c4a0", "#b8d8d4", "#f3bcd9",
)  # fmt: skip
_INK = "#1f2328"
_WIDTH, _HEIGHT, _MARGIN = 56, 30, 10


def svg(chunks: Sequence[Chunk], marked: Collection[Chunk], caption: str) -> str:
    """Return the whole file: a cell for each chunk, framed where it is marked."""
    lines = 1 + max(chunk.line for chunk in chunks)
    width, height = CHUNKS_PER_LINE * _WIDTH + 2 * _MARGIN, lines * _HEIGHT + 60
    cells = "\n".join(_cells(chunks, marked))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13" text-anchor="middle">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{cells}\n'
        f'<text x="{width / 2:g}" y="{height - 16}">{caption}</text>\n</svg>\n'
    )


def _cells(chunks: Sequence[Chunk], marked: Collection[Chunk]) -> Iterator[str]:
    for chunk in chunks:
        x, y = _MARGIN + chunk.place * _WIDTH, _MARGIN + chunk.line * _HEIGHT
        frame = f' stroke="{_INK}" stroke-width="2"' if chunk in marked else ""
        yield (
            f'<rect x="{x + 1}" y="{y + 1}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" '
            f'fill="{COLOURS[chunk.number % len(COLOURS)]}"{frame}/>'
            f'<text x="{x + _WIDTH / 2:g}" y="{y + _HEIGHT / 2 + 5:g}">{chunk.name}</text>'
        )


def save_png(path: Path, chunks: Sequence[Chunk], marked: Collection[Chunk], caption: str) -> None:
    """Draw the same picture as PNG.

    Raises:
        ArgumentError: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentError(
            f"png is {path}; it is drawn with matplotlib, which is not installed. Install it with: "
            "pip install 'tmaasync[plot]', or pass --svg."
        )
    # matplotlib is an optional extra: only a picture needs it.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    lines = 1 + max(chunk.line for chunk in chunks)
    figure = Figure(figsize=(CHUNKS_PER_LINE * 0.6 + 0.4, lines * 0.32 + 0.6), layout="constrained")
    axes = figure.subplots()
    for chunk in chunks:
        colour = COLOURS[chunk.number % len(COLOURS)]
        edge = _INK if chunk in marked else "white"
        corner = (chunk.place + 0.04, chunk.line + 0.06)
        axes.add_patch(Rectangle(corner, 0.92, 0.88, facecolor=colour, edgecolor=edge))
        axes.text(chunk.place + 0.5, chunk.line + 0.5, chunk.name, ha="center", va="center")
    axes.set_xlim(0, CHUNKS_PER_LINE)
    axes.set_ylim(lines, 0)
    axes.set_axis_off()
    figure.supxlabel(caption, fontsize="medium")
    figure.savefig(path, format="png", dpi=150)
