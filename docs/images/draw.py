"""Draws the pictures of the documentation: ``python docs/images/draw.py``.

What they show is computed by the package: where 16-byte units land by `tmaasync.swizzle`, who waits
when by `PipelineState` and `SharedMemBarrier`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tmaasync import PipelineState, SharedMemBarrier, Swizzle, emulate, trace
from tmaasync.cli._demo_emulated import PIPELINED
from tmaasync.swizzle import bank_conflicts, shared_offset

FOLDER = Path(__file__).parent
INK, FAINT, PAPER = "#1f2328", "#8c959f", "#ffffff"
# One colour per 16-byte unit of a row; dark text stays readable on all of them.
COLOURS = (
    "#9ecae9", "#f4c95d", "#a6d8a8", "#f2a7a0", "#cdb4e3", "#e8c4a0", "#b8d8d4", "#f3bcd9",
)  # fmt: skip


@dataclass
class Drawing:
    """SVG text, element by element."""

    width: int
    height: int
    title: str
    elements: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **more: str) -> None:
        """A filled rectangle."""
        self._add("rect", x=x, y=y, width=width, height=height, fill=fill, **more)

    def line(self, x1: float, y1: float, x2: float, y2: float, **more: str) -> None:
        """A thin line."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=FAINT, **more)

    def text(self, x: float, y: float, text: str, size: int = 13, **more: str) -> None:
        """A line of text whose baseline is ``y``."""
        attributes = _attributes(x=x, y=y, font_size=size, fill=INK, **more)
        self.elements.append(f"<text {attributes}>{_escaped(text)}</text>")

    def _add(self, name: str, **attributes: object) -> None:
        self.elements.append(f"<{name} {_attributes(**attributes)}/>")

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif" role="img">'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>'
        title = f"<title>{_escaped(self.title)}</title>"
        return "\n".join((head, title, paper, *self.elements, "</svg>", ""))


def _attributes(**attributes: object) -> str:
    pairs = ((name.replace("_", "-"), _number(value)) for name, value in attributes.items())
    return " ".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --- the swizzle ------------------------------------------------------------------------------

UNIT_BYTES, ROWS, UNITS = 16, 8, 8
CELL_WIDTH, CELL_HEIGHT = 44, 26


def swizzle() -> Drawing:
    """Eight rows of 128 bytes in shared memory, without and with the 128-byte swizzle."""
    drawing = Drawing(840, 340, "Where the 16-byte units of eight rows land in shared memory")
    _unit_map(drawing, 40, Swizzle.NONE)
    _unit_map(drawing, 450, Swizzle.B128)
    drawing.text(40, 326, "A cell is 16 bytes, named row.unit. Framed: unit 2 of every row.")
    return drawing


def _unit_map(drawing: Drawing, left: int, mode: Swizzle) -> None:
    top = 58
    drawing.text(left, 24, str(mode), 15, font_weight="bold")
    drawing.text(left + UNITS * CELL_WIDTH, 24, "shared-memory banks", 11, text_anchor="end")
    for unit in range(UNITS):
        banks = f"{unit * 4}-{unit * 4 + 3}"
        x = left + (unit + 0.5) * CELL_WIDTH
        drawing.text(x, top - 8, banks, 11, text_anchor="middle")
    for row in range(ROWS):
        for unit in range(UNITS):
            place = shared_offset(row * 128 + unit * UNIT_BYTES, mode)
            line, column = divmod(place // UNIT_BYTES, UNITS)
            _unit(drawing, left + column * CELL_WIDTH, top + line * CELL_HEIGHT, row, unit)
    column_2 = np.arange(ROWS) * 128 + 2 * UNIT_BYTES
    passes = 1 + bank_conflicts(shared_offset(column_2, mode), UNIT_BYTES)
    bottom = top + ROWS * CELL_HEIGHT
    drawing.text(left, bottom + 22, f"eight lanes read unit 2 of each row: {_times(passes)}")


def _times(passes: int) -> str:
    return "1 pass over the banks" if passes == 1 else f"{passes} passes over the banks"


def _unit(drawing: Drawing, x: float, y: float, row: int, unit: int) -> None:
    framed = unit == 2
    drawing.rect(
        x + 1.5,
        y + 1.5,
        CELL_WIDTH - 3,
        CELL_HEIGHT - 3,
        COLOURS[unit],
        stroke=INK if framed else "none",
        stroke_width="2",
    )
    drawing.text(
        x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2 + 4, f"{row}.{unit}", 12, text_anchor="middle"
    )


# --- the ring ---------------------------------------------------------------------------------

STAGES, FILLS = 3, 9
LOAD_TICKS, READ_TICKS = 5, 3
TICK, LANE_HEIGHT = 26, 40


@dataclass(frozen=True)
class Span:
    """What a stage holds, and for how many ticks."""

    stage: int
    start: int
    end: int
    fill: int
    is_load: bool


def ring() -> Drawing:
    """Three stages over time: loads by the producer, reads by the consumer."""
    spans = list(simulate())
    end = max(span.end for span in spans)
    right = 70 + end * TICK
    drawing = Drawing(right + 20, 226, "A ring of three stages over time")
    top = 46
    drawing.text(20, 24, "stage", font_weight="bold")
    drawing.text(right, 24, "time \N{RIGHTWARDS ARROW}", text_anchor="end")
    for stage in range(STAGES):
        y = top + stage * LANE_HEIGHT
        drawing.text(20, y + 24, f"{stage}")
        drawing.line(50, y + LANE_HEIGHT - 2, right, y + LANE_HEIGHT - 2)
    for span in spans:
        _span(drawing, top, span)
    _legend(drawing, top + STAGES * LANE_HEIGHT + 24)
    return drawing


def _span(drawing: Drawing, top: int, span: Span) -> None:
    x, y = 60 + span.start * TICK, top + span.stage * LANE_HEIGHT + 4
    width = (span.end - span.start) * TICK
    fill = COLOURS[0] if span.is_load else COLOURS[1]
    drawing.rect(x + 1, y, width - 2, LANE_HEIGHT - 12, fill, rx="3")
    word = "load" if span.is_load else "read"
    drawing.text(x + width / 2, y + 19, f"{word} {span.fill}", 12, text_anchor="middle")


def _legend(drawing: Drawing, y: int) -> None:
    lines = (
        (COLOURS[0], "the producer passed empty[stage]; TMA writes until full[stage] completes"),
        (COLOURS[1], "the consumer passed full[stage]; it reads, then arrives on empty[stage]"),
    )
    for number, (colour, words) in enumerate(lines):
        drawing.rect(20, y + number * 24 - 12, 16, 16, colour, rx="3")
        drawing.text(44, y + number * 24, words)


def simulate() -> Iterator[Span]:
    """One producer and one consumer, tick by tick, held up by real barriers only."""
    full = [SharedMemBarrier(1, name=f"full[{stage}]") for stage in range(STAGES)]
    empty = [SharedMemBarrier(1, name=f"empty[{stage}]") for stage in range(STAGES)]
    loading, reading = PipelineState.for_producer(STAGES), PipelineState.for_consumer(STAGES)
    later: dict[int, list[Callable[[], object]]] = {}
    reads_until = 0
    for tick in range(100):
        for event in later.pop(tick, []):
            event()
        stage = reading.index
        if reading.count < FILLS and tick >= reads_until and full[stage].try_wait(reading.phase):
            reads_until = tick + READ_TICKS
            later.setdefault(reads_until, []).append(empty[stage].arrive)
            yield Span(stage, tick, reads_until, reading.count, is_load=False)
            reading.step()
        stage = loading.index
        if loading.count < FILLS and empty[stage].try_wait(loading.phase):
            landed = tick + LOAD_TICKS
            full[stage].expect_bytes(128)
            later.setdefault(landed, []).append(lambda stage=stage: full[stage].complete_tx(128))
            yield Span(stage, tick, landed, loading.count, is_load=True)
            loading.step()


PICTURES: dict[str, Callable[[], Drawing]] = {"swizzle.svg": swizzle, "ring.svg": ring}


def timeline() -> None:
    """The demo's product of four stages, as the emulator ran it. Its bytes depend on matplotlib."""
    with emulate.scheduled("random", seed=0), trace.record() as kept:
        PIPELINED.run(*PIPELINED.inputs())
    trace.plot(kept, FOLDER / "timeline.png")


def main() -> None:
    """Write every picture beside this script."""
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg())
    timeline()


if __name__ == "__main__":
    main()
