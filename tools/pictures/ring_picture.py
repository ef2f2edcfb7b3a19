"""Who waits when in a pipeline, as `PipelineState` and `SharedMemBarrier` model it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from drawing import COLOURS, Drawing

from tmaasync import PipelineState, SharedMemBarrier

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
    drawing = Drawing(right + 20, 226, "A pipeline of three stages over time")
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
    drawing.text(
        x + width / 2, y + 19, f"{word} {span.fill}", 12, on_colour=True, text_anchor="middle"
    )


def _legend(drawing: Drawing, y: int) -> None:
    lines = (
        (COLOURS[0], "after the wait on empty[stage]: TMA writes, then full[stage] completes"),
        (
            COLOURS[1],
            "after the wait on full[stage]: the consumer reads, then arrives on empty[stage]",
        ),
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
