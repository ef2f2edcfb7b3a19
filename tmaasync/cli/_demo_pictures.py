"""What the demo leaves behind: a timeline, the same for Perfetto, and a swizzle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tmaasync import emulate, swizzle
from tmaasync.cli._demo_emulated import PIPELINED
from tmaasync.errors import BackendError
from tmaasync.modes import Swizzle

__all__ = ["Pictures", "save"]

_ROWS, _CHUNKS, _CHUNK_BYTES = 8, 8, 16
_WIDTH, _HEIGHT = 56, 30
# One colour per chunk of a row; dark text stays readable on all of them.
_COLOURS = (
    "#9ecae9", "#f4c95d", "#a6d8a8", "#f2a7a0", "#cdb4e3", "#e8c4a0", "#b8d8d4", "#f3bcd9",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Files with what each shows, and why one is missing."""

    files: dict[str, str]
    missing: str | None


def save(folder: Path) -> Pictures:
    """Run the pipelined product once more, traced, and write everything into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # In this order of threads and copies the loads run ahead, and the ring is seen at work.
    with emulate.scheduled("random", seed=0), emulate.trace() as trace:
        PIPELINED.run(*PIPELINED.inputs())
    timeline, perfetto, chunks = (
        folder / name for name in ("timeline.png", "timeline.json", "swizzle.svg")
    )
    trace.save(perfetto)
    chunks.write_text(_swizzle_svg())
    files = {
        str(perfetto): "the same for https://ui.perfetto.dev",
        str(chunks): "where the 128-byte swizzle puts the 16-byte chunks of eight rows",
    }
    try:
        emulate.plot(trace, timeline)
    except BackendError as error:
        return Pictures(files=files, missing=str(error))
    shown = f"warps and stages of {PIPELINED.name}, {PIPELINED.size}"
    return Pictures(files={str(timeline): shown, **files}, missing=None)


def _swizzle_svg() -> str:
    width, height = _CHUNKS * _WIDTH + 20, _ROWS * _HEIGHT + 60
    cells = "\n".join(_cells())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13" text-anchor="middle">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{cells}\n'
        f'<text x="{width / 2:g}" y="{height - 16}">'
        "eight rows of shared memory; a cell is row.chunk of the tile</text>\n</svg>\n"
    )


def _cells() -> Iterator[str]:
    for row in range(_ROWS):
        for chunk in range(_CHUNKS):
            start = (row * _CHUNKS + chunk) * _CHUNK_BYTES
            place = int(swizzle.shared_offset(start, Swizzle.B128)) // _CHUNK_BYTES
            x, y = 10 + place % _CHUNKS * _WIDTH, 10 + place // _CHUNKS * _HEIGHT
            yield (
                f'<rect x="{x + 1}" y="{y + 1}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" '
                f'fill="{_COLOURS[chunk]}"/>'
                f'<text x="{x + _WIDTH / 2:g}" y="{y + _HEIGHT / 2 + 5:g}">{row}.{chunk}</text>'
            )
