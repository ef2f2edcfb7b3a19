"""Draws the pictures of README and documentation: ``python tools/pictures``.

What they show is computed by the package: where 16-byte units land by `tmaasync.swizzle`, what
barriers count and who waits when by `tmaasync.barrier` and `PipelineState`, what kernels do by the
emulator.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from barrier_picture import transaction
from corner_picture import corner
from drawing import Drawing
from ring_picture import ring
from swizzle_picture import swizzle
from timeline_picture import timeline

from tmaasync import emulate, trace
from tmaasync.cli._demo_emulated import PIPELINED

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURES: dict[str, Callable[[], Drawing]] = {
    "corner.svg": corner,
    "ring.svg": ring,
    "swizzle.svg": swizzle,
    "timeline.svg": timeline,
    "transaction.svg": transaction,
}


def product() -> None:
    """The demo's product of four stages, as the emulator ran it. Its bytes depend on matplotlib."""
    with emulate.scheduled("random", seed=0), trace.record() as kept:
        PIPELINED.run(*PIPELINED.inputs())
    trace.plot(kept, FOLDER / "timeline.png")


def main() -> None:
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg())
    product()


if __name__ == "__main__":
    main()
