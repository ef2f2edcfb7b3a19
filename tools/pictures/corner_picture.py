"""An array, a tile that hangs over its edge, and what lands: by running README's first program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from drawing import COLOURS, INK, Drawing

README = Path(__file__).resolve().parents[2] / "README.md"
CELL_WIDTH, CELL_HEIGHT, TOP = 40, 28, 64
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_START = re.compile(r"arrived, \{(\d+), (\d+)\}")


def corner() -> Drawing:
    """The array with the tile's frame on the left, the tile in shared memory on the right."""
    names, (column, row) = _ran()
    image, out = names["image"], names["out"]
    right = 40 + (column + out.shape[1]) * CELL_WIDTH + 60
    height = TOP + (row + out.shape[0]) * CELL_HEIGHT + 44
    drawing = Drawing(right + out.shape[1] * CELL_WIDTH + 24, height, "A tile over an array's edge")
    drawing.text(40, 24, "the array, in global memory", 15, font_weight="bold")
    drawing.text(right, 24, "the tile, in shared memory", 15, font_weight="bold")
    _numbers(drawing, 40, TOP, image, np.ones_like(image, bool))
    _frame(drawing, 40 + column * CELL_WIDTH, TOP + row * CELL_HEIGHT, out.shape)
    inside = np.zeros(out.shape, bool)
    inside[: len(image) - row, : image.shape[1] - column] = True
    _numbers(drawing, right, TOP + row * CELL_HEIGHT, out, inside)
    _frame(drawing, right, TOP + row * CELL_HEIGHT, out.shape)
    drawing.text(40, 46, f"{image.shape[0]} rows of {image.shape[1]}", 12)
    drawing.text(
        right,
        46,
        f"copied from column {column}, row {row} on: {out.shape[0]} rows of {out.shape[1]}",
        12,
    )
    drawing.text(right, height - 16, "beyond the edges TMA writes zeros", 12)
    return drawing


def _ran() -> tuple[dict[str, Any], tuple[int, int]]:
    found = _PROGRAM.search(README.read_text())
    if found is None:
        raise ValueError("README.md has no python block")
    names: dict[str, Any] = {"__name__": "first"}
    exec(compile(found[1], "README.md", "exec"), names)  # noqa: S102
    column, row = map(int, _START.findall(found[1])[0])
    return names, (column, row)


def _numbers(
    drawing: Drawing, left: int, top: int, values: npt.NDArray[Any], is_there: npt.NDArray[np.bool_]
) -> None:
    for (row, column), value in np.ndenumerate(values):
        x, y = left + column * CELL_WIDTH, top + row * CELL_HEIGHT
        fill = COLOURS[0] if is_there[row, column] else "#eef0f2"
        drawing.rect(x + 1, y + 1, CELL_WIDTH - 2, CELL_HEIGHT - 2, fill)
        drawing.text(x + CELL_WIDTH / 2, y + 19, f"{value:g}", 12, text_anchor="middle")


def _frame(drawing: Drawing, x: int, y: int, shape: tuple[int, ...]) -> None:
    width, height = shape[1] * CELL_WIDTH, shape[0] * CELL_HEIGHT
    drawing.rect(x, y, width, height, "none", stroke=INK, stroke_width="2", stroke_dasharray="6 3")
