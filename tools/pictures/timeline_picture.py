"""A kernel with a pipeline over time, as the emulator ran it: step 4 of the tutorial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from drawing import COLOURS, QUIET, Drawing

from tmaasync import Kernel, create_tma_tile, emulate, trace

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "04_pipeline.cu"
STAGES, TILES, ROWS, COLUMNS = 3, 9, 16, 128
CONSUMERS = COLUMNS // 32
LEFT, TOP, LANE_HEIGHT, STEP = 106, 40, 30, 9
LOADING, READING, WAITING = COLOURS[0], COLOURS[1], QUIET
LANES = (
    *(f"stage {stage}" for stage in range(STAGES)),
    *(f"consumer {warp}" for warp in range(CONSUMERS)),
    "producer",
)
_PRODUCER = STAGES + CONSUMERS


@dataclass(frozen=True)
class Bar:
    """What a lane does from one moment to another."""

    lane: int
    begin: int
    end: int
    colour: str
    text: str = ""


def timeline() -> Drawing:
    """The stages of the pipeline, the warps that read them, and the warp that loads."""
    bars = [bar for bar in _bars(_events()) if bar.begin < bar.end]
    # The emulator counts its scheduler's steps, hundreds for a read: only their order matters.
    moments = sorted({moment for bar in bars for moment in (bar.begin, bar.end)})
    x = {moment: LEFT + number * STEP for number, moment in enumerate(moments)}
    right, bottom = x[moments[-1]], TOP + len(LANES) * LANE_HEIGHT
    drawing = Drawing(right + 20, bottom + 84, "A pipeline of three stages at work")
    drawing.text(
        right,
        24,
        "emulated order of events, one column each; no durations \N{RIGHTWARDS ARROW}",
        text_anchor="end",
    )
    for lane, name in enumerate(LANES):
        y = TOP + lane * LANE_HEIGHT
        drawing.text(16, y + 18, name)
        drawing.line(LEFT, y + LANE_HEIGHT - 2, right, y + LANE_HEIGHT - 2)
    for bar in bars:
        _draw(drawing, bar, x[bar.begin], x[bar.end])
    _legend(drawing, bottom + 24)
    return drawing


def _events() -> list[Any]:
    x = np.ones((TILES * ROWS, COLUMNS), np.float32)
    energies = np.zeros(COLUMNS, np.float32)
    source = create_tma_tile(x, (ROWS, COLUMNS))
    types, constants = {"Tile": source}, {"STAGES": STAGES}
    kernel = Kernel(SOURCE, "column_energies", types=types, constants=constants)
    with emulate.scheduled("random", seed=1), trace.record() as kept:
        kernel(1, 32 * (CONSUMERS + 1), (source, energies, *x.shape))
    return list(kept.launches[0].of(block=0))


def _bars(events: list[Any]) -> Iterator[Bar]:
    """In the order of time: what begins is kept under its name until it ends."""
    began: dict[Any, int] = {}
    loads = dict.fromkeys(range(STAGES), 0)
    for event in events:
        name = event.barrier_name or ""
        stage = int(name[-2]) if name.endswith("]") else 0
        lane = _PRODUCER if event.warp == CONSUMERS else STAGES + (event.warp or 0)
        match event.kind.name:
            case "LOAD_ISSUED":
                began["load", stage] = event.time
            case "LOAD_LANDED":
                yield Bar(stage, began["load", stage], event.time, LOADING, _tile(loads, stage))
                began["full", stage] = event.time
            case "PHASE_COMPLETED" if name.startswith("empty"):
                yield Bar(stage, began["full", stage], event.time, READING, _tile(loads, stage))
                loads[stage] += 1
            case "WAIT_BEGIN":
                began["wait", lane] = event.time
            case "WAIT_END":
                yield Bar(lane, began["wait", lane], event.time, WAITING)
                # The first lane of a warp may wait for the next tile while others still read.
                began["read", lane, stage] = event.time
            case "ARRIVE" if lane != _PRODUCER:
                yield Bar(lane, began["read", lane, stage], event.time, READING)


def _tile(loads: dict[int, int], stage: int) -> str:
    return str(loads[stage] * STAGES + stage)


def _draw(drawing: Drawing, bar: Bar, left: int, right: int) -> None:
    y = TOP + bar.lane * LANE_HEIGHT + 3
    drawing.rect(left + 0.5, y, right - left - 1, LANE_HEIGHT - 9, bar.colour, rx="2")
    if bar.text and right - left > STEP:
        drawing.text((left + right) / 2, y + 15, bar.text, 11, on_colour=True, text_anchor="middle")


def _legend(drawing: Drawing, y: int) -> None:
    lines = (
        (LOADING, "TMA writes the tile of this number into the stage"),
        (READING, "the tile has landed; consumers read it"),
        (WAITING, "waits at a barrier: a consumer for a tile, the producer for an empty stage"),
    )
    for number, (colour, words) in enumerate(lines):
        drawing.rect(16, y + number * 22 - 12, 14, 14, colour, rx="2")
        drawing.text(38, y + number * 22, words, 12)
