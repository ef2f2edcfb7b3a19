"""What a barrier counts while a tile lands, as `tmaasync.barrier` counts it."""

from __future__ import annotations

from collections.abc import Iterator

from drawing import COLOURS, Drawing

from tmaasync.barrier import BarrierWord

TILE_BYTES, PARTS = 128, 4
STEP, LEFT, GROUND, TALLEST = 136, 110, 134, 84
ARRIVALS, BYTES = COLOURS[3], COLOURS[0]


def transaction() -> Drawing:
    """Bytes missing, arrivals pending and the phase, after each call and each part that lands."""
    steps = list(_steps())
    width = LEFT + len(steps) * STEP + 12
    drawing = Drawing(width, 214, "What a barrier counts while a tile lands")
    for words, y in (("bytes missing", 154), ("arrivals pending", 176), ("phase", 198)):
        drawing.text(LEFT - 8, y, words, 12, text_anchor="end")
    drawing.line(LEFT, GROUND, width - 12, GROUND)
    for number, (what, word) in enumerate(steps):
        x = LEFT + number * STEP
        _bar(drawing, x, word)
        drawing.text(x + STEP / 2, 24, what, 12, text_anchor="middle", font_weight="bold")
        for value, y in ((word.tx_count, 154), (word.pending, 176), (word.phase, 198)):
            is_coloured = y == 176 and value > 0
            drawing.text(
                x + STEP / 2, y, str(value), 12, on_colour=is_coloured, text_anchor="middle"
            )
    return drawing


def _bar(drawing: Drawing, x: int, word: BarrierWord) -> None:
    height = word.tx_count / TILE_BYTES * TALLEST
    drawing.rect(x + 20, GROUND - height, STEP - 40, height, BYTES)
    drawing.rect(x + 44, 162, STEP - 88, word.pending * 19, ARRIVALS, rx="3")


def _steps() -> Iterator[tuple[str, BarrierWord]]:
    """What happened, and the barrier after it."""
    word = BarrierWord.for_count(1)
    yield "init(1)", word
    word = word.expect_bytes(TILE_BYTES)
    yield f"expect_bytes({TILE_BYTES})", word
    for part in range(1, PARTS + 1):
        word = word.complete_tx(TILE_BYTES // PARTS)
        landed = f"{TILE_BYTES // PARTS} bytes land"
        yield landed if part < PARTS else f"{landed}: go on", word
