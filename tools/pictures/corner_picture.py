"""A tile that hangs over the edge of an array, and what the copy writes: run on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from drawing import COLOURS, FRAME, QUIET, Drawing

from tmaasync import Kernel, create_tma_tile

CELL_WIDTH, CELL_HEIGHT, TOP = 40, 28, 64
ROW, COLUMN = 3, 4
SOURCE = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void corner(const __grid_constant__ Tile image, float* out) {
    __shared__ Tile::Shared tile;
    __shared__ tmaasync::SharedMemBarrier arrived;
    arrived.init(1), tmaasync::fence_barrier_init();
    arrived.expect_bytes(Tile::kBytes);
    image.async_copy(tile, arrived, {COLUMN, ROW});
    arrived.wait(0);
    for (int i = 0; i < 32; ++i) out[i] = tile.data()[i];
}
"""


def corner() -> Drawing:
    """The array with the tile's frame on the left, the tile in shared memory on the right."""
    image, out = _copied()
    row, column = ROW, COLUMN
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
        f"copied from column {column} and row {row}: {out.shape[0]} rows of {out.shape[1]}",
        12,
    )
    drawing.text(right, height - 16, "outside of the array TMA writes zeros", 12)
    return drawing


def _copied() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The array, and the tile that a kernel copied from its corner."""
    image, out = np.arange(40, dtype=np.float32).reshape(5, 8), np.zeros((4, 8), np.float32)
    tile = create_tma_tile(image, out.shape)
    start = {"ROW": ROW, "COLUMN": COLUMN}
    Kernel(SOURCE, "corner", types={"Tile": tile}, constants=start)(1, 1, (tile, out))
    return image, out


def _numbers(
    drawing: Drawing, left: int, top: int, values: npt.NDArray[Any], is_there: npt.NDArray[np.bool_]
) -> None:
    for (row, column), value in np.ndenumerate(values):
        x, y = left + column * CELL_WIDTH, top + row * CELL_HEIGHT
        inside = bool(is_there[row, column])
        fill = COLOURS[0] if inside else QUIET
        drawing.rect(x + 1, y + 1, CELL_WIDTH - 2, CELL_HEIGHT - 2, fill)
        drawing.text(
            x + CELL_WIDTH / 2, y + 19, f"{value:g}", 12, on_colour=inside, text_anchor="middle"
        )


def _frame(drawing: Drawing, x: int, y: int, shape: tuple[int, ...]) -> None:
    width, height = shape[1] * CELL_WIDTH, shape[0] * CELL_HEIGHT
    drawing.rect(x, y, width, height, FRAME, stroke_width="2", stroke_dasharray="6 3")
