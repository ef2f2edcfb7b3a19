"""Draws the pictures of README and documentation: ``python tools/pictures``.

Each picture is a pair, ``NAME.svg`` for light pages and ``NAME_dark.svg`` for dark ones; the PNG of
the timeline too. `theme_pictures.py` puts both into a page of the site.

The package computes what they show: `tmaasync.swizzle` where 16-byte chunks land,
`tmaasync.barrier` and `PipelineState` what barriers count and who waits when, the emulator what
kernels do.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

from barrier_picture import transaction
from corner_picture import corner
from drawing import Drawing
from peers_picture import peers
from ring_picture import ring
from swizzle_picture import swizzle
from timeline_picture import timeline

from tmaasync import emulate, trace
from tmaasync.cli._demo_emulated import PIPELINED

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURES: dict[str, Callable[[], Drawing]] = {
    "corner": corner,
    "peers": peers,
    "ring": ring,
    "swizzle": swizzle,
    "timeline": timeline,
    "transaction": transaction,
}


def rendered() -> Iterator[tuple[str, str]]:
    """Name and text of each SVG file: one for light pages, and one for dark ones."""
    for name, draw in PICTURES.items():
        drawing = draw()
        yield f"{name}.svg", drawing.svg()
        yield f"{name}_dark.svg", drawing.svg(dark=True)


def timelines() -> None:
    """The demo's GEMM of four stages, as the emulator ran it. Its bytes depend on matplotlib."""
    with emulate.scheduled("random", seed=0), trace.record() as kept:
        PIPELINED.run(*PIPELINED.inputs())
    trace.plot(kept, FOLDER / "timeline.png", width=11)
    trace.plot(kept, FOLDER / "timeline_dark.png", width=11, dark=True)


def timelines_of_devices() -> None:
    """Tutorial 9 on three devices."""
    example = runpy.run_path(str(FOLDER.parents[1] / "examples" / "09_peers.py"))
    with emulate.scheduled("random", seed=5), trace.record() as kept:
        example["main"](3)
    trace.plot(kept, FOLDER / "devices.png", width=11)
    trace.plot(kept, FOLDER / "devices_dark.png", width=11, dark=True)


def main() -> None:
    for name, text in rendered():
        (FOLDER / name).write_text(text)
    timelines()
    timelines_of_devices()


if __name__ == "__main__":
    main()
