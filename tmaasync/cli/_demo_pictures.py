"""Files of the demo: a timeline, the same for Perfetto, and a swizzle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tmaasync import emulate, trace
from tmaasync.cli._chunk_pictures import Picture, svg
from tmaasync.cli._chunks import Layout
from tmaasync.cli._demo_emulated import PIPELINED
from tmaasync.errors import BackendError
from tmaasync.modes import Swizzle


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Files with what each shows, and why one is missing."""

    files: dict[str, str]
    missing: str | None


def save(folder: Path) -> Pictures:
    """Run the pipelined matmul once more, traced, and write everything into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # In this order of threads and copies the loads run ahead, and the ring is seen at work.
    with emulate.scheduled("random", seed=0), trace.record() as kept:
        PIPELINED.run(*PIPELINED.inputs())
    timeline, perfetto, chunks = (
        folder / name for name in ("timeline.png", "timeline.json", "swizzle.svg")
    )
    kept.save(perfetto)
    chunks.write_text(_swizzle_svg(), encoding="utf-8")
    files = {
        str(perfetto): "the timeline, for https://ui.perfetto.dev",
        str(chunks): "where the 128-byte swizzle puts the 16-byte chunks of eight rows",
    }
    try:
        trace.plot(kept, timeline)
    except BackendError as error:
        return Pictures(files=files, missing=str(error))
    shown = f"warps and stages of {PIPELINED.name}, {PIPELINED.size}"
    return Pictures(files={str(timeline): shown, **files}, missing=None)


def _swizzle_svg() -> str:
    chunks = list(Layout(8, 64, 2, Swizzle.B128).chunks())
    title = "Swizzle 128B: 8 rows of 128 bytes in shared memory"
    return svg(
        Picture(chunks, (), title, "a cell is row.chunk: 16 bytes of the tile in four banks")
    )
