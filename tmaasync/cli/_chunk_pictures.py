"""Pictures of chunks in shared memory, with banks and byte offsets: SVG, or PNG by matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tmaasync._hardware import SHARED_LINE_BYTES
from tmaasync._wheels import install_command
from tmaasync.cli._chunks import CHUNKS_PER_LINE, Chunk
from tmaasync.errors import ArgumentError

# One colour per chunk of a row; dark text stays readable on all of them.
COLOURS = (
    "#9ecae9", "#f4c95d", "#a6d8a8", "#f2a7a0", "#cdb4e3", "#e8c4a0", "#b8d8d4", "#f3bcd9",
)  # fmt: skip
BANK_NAMES = tuple(f"{4 * column}-{4 * column + 3}" for column in range(CHUNKS_PER_LINE))
"""The four banks of each chunk of a line of 128 bytes."""

_INK, _PALE = "#1f2328", "#656d76"
_WIDTH, _HEIGHT, _MARGIN = 56, 30, 10
_LEFT, _TOP = 64, 64  # byte offsets; title and banks


@dataclass(frozen=True, slots=True)
class Picture:
    """Chunks of a tile at their offsets in shared memory; the marked ones are framed."""

    chunks: Sequence[Chunk]
    marked: Collection[Chunk]
    title: str
    caption: str

    @property
    def lines(self) -> int:
        """Lines of 128 bytes."""
        return 1 + max(chunk.line for chunk in self.chunks)


def svg(picture: Picture) -> str:
    """Return the whole file: a cell for each chunk, framed where it is marked."""
    width = _LEFT + CHUNKS_PER_LINE * _WIDTH + _MARGIN
    height = _TOP + picture.lines * _HEIGHT + 40
    parts = "\n".join((*_labels(picture), *_cells(picture)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13" fill="{_INK}" text-anchor="middle">\n'
        f"<title>{escape(picture.title)}</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{parts}\n'
        f'<text x="{width / 2:g}" y="{height - 14}">{escape(picture.caption)}</text>\n</svg>\n'
    )


def _labels(picture: Picture) -> Iterator[str]:
    """Yield the title, the banks above the columns, and the byte offsets of the lines."""
    yield (
        f'<text x="{_MARGIN}" y="24" font-size="15" font-weight="bold" text-anchor="start">'
        f"{escape(picture.title)}</text>"
    )
    small = f'font-size="11" fill="{_PALE}"'
    left = f'class="label" x="{_LEFT - 8}" {small} text-anchor="end"'
    yield f'<text {left} y="{_TOP - 8}">bank</text>'
    for column, banks in enumerate(BANK_NAMES):
        x = _LEFT + (column + 0.5) * _WIDTH
        yield f'<text class="label" x="{x:g}" y="{_TOP - 8}" {small}>{banks}</text>'
    for line in range(picture.lines):
        y = _TOP + line * _HEIGHT + _HEIGHT / 2 + 4
        offset = line * SHARED_LINE_BYTES
        yield f'<text {left} y="{y:g}">byte {offset}</text>'


def _cells(picture: Picture) -> Iterator[str]:
    for chunk in picture.chunks:
        x, y = _LEFT + chunk.column * _WIDTH, _TOP + chunk.line * _HEIGHT
        frame = f' stroke="{_INK}" stroke-width="2"' if chunk in picture.marked else ""
        yield (
            f'<rect x="{x + 1}" y="{y + 1}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" '
            f'fill="{COLOURS[chunk.number % len(COLOURS)]}"{frame}/>'
            f'<text x="{x + _WIDTH / 2:g}" y="{y + _HEIGHT / 2 + 5:g}">{chunk.name}</text>'
        )


def save_png(path: Path, picture: Picture) -> None:
    """Draw the same picture as PNG.

    Raises:
        ArgumentError: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentError.broken(
            "png",
            path,
            "it is drawn with matplotlib, which is not installed",
            f"Install it with: {install_command('plot')}, or pass --svg",
        )
    # matplotlib is an optional extra: only a picture needs it.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    size = (CHUNKS_PER_LINE * 0.6 + 1.2, picture.lines * 0.32 + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    for chunk in picture.chunks:
        colour = COLOURS[chunk.number % len(COLOURS)]
        edge = _INK if chunk in picture.marked else "white"
        corner = (chunk.column + 0.04, chunk.line + 0.06)
        axes.add_patch(Rectangle(corner, 0.92, 0.88, facecolor=colour, edgecolor=edge))
        axes.text(chunk.column + 0.5, chunk.line + 0.5, chunk.name, ha="center", va="center")
    axes.set_xlim(0, CHUNKS_PER_LINE)
    axes.set_ylim(picture.lines, 0)
    axes.xaxis.tick_top()
    axes.set_xticks([column + 0.5 for column in range(CHUNKS_PER_LINE)], BANK_NAMES)
    offsets = [f"byte {line * SHARED_LINE_BYTES}" for line in range(picture.lines)]
    axes.set_yticks([line + 0.5 for line in range(picture.lines)], offsets)
    axes.set_xlabel("bank", fontsize="small", color=_PALE)
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelsize="small", labelcolor=_PALE)
    axes.spines[:].set_visible(False)
    figure.suptitle(picture.title, fontsize="medium", fontweight="bold")
    figure.supxlabel(picture.caption, fontsize="small")
    figure.savefig(path, format="png", dpi=150)
