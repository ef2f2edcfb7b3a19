"""Where 16-byte chunks land, as `tmaasync.swizzle` computes it."""

from __future__ import annotations

import numpy as np
from drawing import COLOURS, FRAME, Drawing

from tmaasync import Swizzle
from tmaasync.swizzle import bank_conflicts, shared_offset

CHUNK_BYTES, ROWS, CHUNKS, BANKS_PER_CHUNK = 16, 8, 8, 4
CELL_WIDTH, CELL_HEIGHT = 44, 26
LABELS, TOP = 66, 98
MAP_WIDTH = LABELS + CHUNKS * CELL_WIDTH
FRAMED = 2
NAMES = {Swizzle.NONE: "without a swizzle", Swizzle.B128: "128-byte swizzle (Swizzle.B128)"}


def swizzle() -> Drawing:
    """Eight rows of 128 bytes in shared memory, without and with the 128-byte swizzle."""
    title = "Eight rows of 128 bytes in shared memory, without and with the 128-byte swizzle"
    bottom = TOP + ROWS * CELL_HEIGHT
    drawing = Drawing(2 * MAP_WIDTH + 72, bottom + 66, title)
    drawing.text(16, 26, title, 16, font_weight="bold")
    for number, mode in enumerate(NAMES):
        _chunk_map(drawing, 16 + number * (MAP_WIDTH + 36), mode)
    drawing.text(
        16,
        bottom + 52,
        f"A cell is a chunk of 16 bytes in four banks, named row.chunk. Framed: chunk {FRAMED} of "
        "every row, which eight threads read together.",
        12,
    )
    return drawing


def _chunk_map(drawing: Drawing, left: int, mode: Swizzle) -> None:
    cells = left + LABELS
    drawing.text(cells, 60, NAMES[mode], 14, font_weight="bold")
    drawing.text(cells - 8, TOP - 8, "banks", 11, text_anchor="end")
    for chunk in range(CHUNKS):
        first = chunk * BANKS_PER_CHUNK
        x = cells + (chunk + 0.5) * CELL_WIDTH
        banks = f"{first}\N{EN DASH}{first + BANKS_PER_CHUNK - 1}"
        drawing.text(x, TOP - 8, banks, 11, text_anchor="middle")
    for row in range(ROWS):
        y = TOP + row * CELL_HEIGHT + CELL_HEIGHT / 2 + 4
        drawing.text(cells - 8, y, f"byte {row * CHUNKS * CHUNK_BYTES}", 11, text_anchor="end")
        for chunk in range(CHUNKS):
            offset = shared_offset((row * CHUNKS + chunk) * CHUNK_BYTES, mode)
            line, column = divmod(offset // CHUNK_BYTES, CHUNKS)
            _chunk(drawing, cells + column * CELL_WIDTH, TOP + line * CELL_HEIGHT, row, chunk)
    column = np.arange(ROWS) * CHUNKS * CHUNK_BYTES + FRAMED * CHUNK_BYTES
    passes = 1 + bank_conflicts(shared_offset(column, mode), CHUNK_BYTES)
    bottom = TOP + ROWS * CELL_HEIGHT
    drawing.text(cells, bottom + 22, f"Chunk {FRAMED} of every row: {_cost(passes)}")


def _cost(passes: int) -> str:
    if passes == 1:
        return "one pass, no bank conflict"
    return f"{passes} passes, an {passes}-way bank conflict"


def _chunk(drawing: Drawing, x: float, y: float, row: int, chunk: int) -> None:
    inside = x + 1.5, y + 1.5, CELL_WIDTH - 3, CELL_HEIGHT - 3
    drawing.rect(*inside, COLOURS[chunk])
    if chunk == FRAMED:
        drawing.rect(*inside, FRAME, stroke_width="2.5")
    drawing.text(
        x + CELL_WIDTH / 2,
        y + CELL_HEIGHT / 2 + 4,
        f"{row}.{chunk}",
        12,
        on_colour=True,
        text_anchor="middle",
    )
