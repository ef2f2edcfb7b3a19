"""Where 16-byte units land, as `tmaasync.swizzle` computes it."""

from __future__ import annotations

import numpy as np
from drawing import COLOURS, INK, Drawing

from tmaasync import Swizzle
from tmaasync.swizzle import bank_conflicts, shared_offset

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
