"""The tiles and the kernel of ragged.cu: rows of packed and padded arrays, as words in boxes."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._hardware import BOX_START_ALIGNMENT, TMA_ALIGNMENT
from tmaasync.errors import TensorMapError, Violation
from tmaasync.kernel import Kernel
from tmaasync.ops._copy import TILED_PIPELINE, CopyPipeline
from tmaasync.ops._layouts import with_merged_dims
from tmaasync.ops._operation import shipped_kernel
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map
from tmaasync.tile import TMATensorTile, create_tma_tile

# The fastest for strided arrays on an H200, which these are (benchmarks/bench_ragged.py --sweep).
RAGGED_PIPELINE = TILED_PIPELINE

# One tile of zeros is stored so often by a block that writes padding. Fewer would write faster, but
# where there is no padding the blocks that find none to write cost more.
PADDING_TILES = 8

# Boxes of a tile that ragged_store loads: the last tile of a sequence is loaded up to a box's end.
# 1, 2, 4 and 8 reach 0.887, 0.911, 0.929 and 0.939 of ops.copy on 4096 sequences of up to 256 rows
# of 1024 bytes, one in eight long, and 0.946 to 0.970 on lengths drawn evenly (H200, 2026-11-23).
LOAD_BOXES = 8

WORD = element(np.uint64)  # rows move as words, whatever they hold; zeros are zeros in any type
_MAX_BOX_SIDE = 256
_MIN_FOLDED_SIDE = 64
MAX_ROW_DIMS = 3


def ragged_tiles(
    packed: ArrayView,
    padded: ArrayView,
    pipeline: CopyPipeline,
    names: tuple[str, str] = ("packed", "padded"),
    *,
    is_loaded: bool = False,
) -> tuple[RaggedTensorMap, TMATensorTile]:
    """Return the map and the tile that the kernel takes, of arrays of these names in errors.

    If the padded array is loaded, its tile has several boxes along the rows.
    """
    packed, padded = _rows_in_words(packed, padded, names)
    left = pipeline.tile_bytes // WORD.itemsize
    # In steps of two, so that a new max_length does not need a new kernel.
    rows = 1 << (padded.shape[1] - 1).bit_length()
    sides: list[int] = []
    for extent in reversed((rows, *padded.shape[2:])):
        sides.append(min(extent, _MAX_BOX_SIDE, left))
        left = max(1, left // sides[-1])
    tile_shape = tuple(reversed(sides))
    with _named(names[0]):
        packed_map = create_ragged_tensor_map(packed, tile_shape, max_length=padded.shape[1])
    with _named(names[1]):
        box_shape = _load_box(tile_shape) if is_loaded else tile_shape
        padded_tile = create_tma_tile(padded, (1, *tile_shape), box_shape=(1, *box_shape))
    return packed_map, padded_tile


def _load_box(tile_shape: Sequence[int]) -> tuple[int, ...]:
    rows, *sides = tile_shape
    box_rows = -(-rows // LOAD_BOXES)
    box_bytes = box_rows * math.prod(sides) * WORD.itemsize
    is_legal = rows % box_rows == 0 and box_bytes % BOX_START_ALIGNMENT == 0
    return (box_rows if is_legal else rows, *sides)


def _rows_in_words(
    packed: ArrayView, padded: ArrayView, names: tuple[str, str]
) -> tuple[ArrayView, ArrayView]:
    """Return the arrays with rows of words, in as few dimensions as they have in memory."""
    rows = with_merged_dims(_without(packed, 1), _without(padded, 2))
    found = [
        one for name, view in zip(names, rows, strict=True) for one in _row_violations(name, view)
    ]
    if found:
        raise TensorMapError(tuple(found))
    rows = tuple(map(_folded, map(in_words, rows)))
    return _with_rows(packed, 1, rows[0]), _with_rows(padded, 2, rows[1])


def _without(view: ArrayView, dims: int) -> ArrayView:
    """Return one row; a single element keeps its dimension."""
    shape, strides = view.shape[dims:], view.strides_bytes[dims:]
    return view._replace(shape=shape, strides_bytes=strides)


def _with_rows(view: ArrayView, dims: int, row: ArrayView) -> ArrayView:
    return row._replace(
        shape=view.shape[:dims] + row.shape,
        strides_bytes=view.strides_bytes[:dims] + row.strides_bytes,
    )


def _row_violations(name: str, row: ArrayView) -> Iterator[Violation]:
    size = row.element.itemsize
    extent, stride = (row.shape[-1], row.strides_bytes[-1]) if row.shape else (1, size)
    if stride != size:
        rule = f"the last dimension must be contiguous, {size} bytes apart"
        yield Violation(f"{name}'s last stride", stride, rule, "Copy the array to have it so")
    elif extent * size % TMA_ALIGNMENT:
        rule = "TMA moves rows in sectors of 16 bytes"
        remedy = "Pad the last dimension to a multiple of 16 bytes"
        yield Violation(f"a row of {name}", f"{extent * size} bytes long", rule, remedy)
    if len(row.shape) > MAX_ROW_DIMS:
        rule = "a row has at most three dimensions that do not lie in one piece"
        yield Violation(f"{name}'s rows", f"{row.shape}", rule, "Copy the array to merge some")


def in_words(row: ArrayView) -> ArrayView:
    """Return rows of any type as rows of `WORD`: a box has up to 256 elements along a side."""
    count = row.shape[-1] * row.element.itemsize // WORD.itemsize
    return row._replace(
        shape=(*row.shape[:-1], count),
        strides_bytes=(*row.strides_bytes[:-1], WORD.itemsize),
        element=WORD,
    )


def _folded(row: ArrayView) -> ArrayView:
    """Return long rows in two dimensions, so that one box holds whole rows."""
    *outer, count = row.shape
    if count <= _MAX_BOX_SIDE or len(outer) == MAX_ROW_DIMS - 1:
        return row
    per_sector = TMA_ALIGNMENT // WORD.itemsize
    sides = range(_MAX_BOX_SIDE, _MIN_FOLDED_SIDE - 1, -per_sector)
    side = next((side for side in sides if count % side == 0), None)
    if side is None:
        return row
    return row._replace(
        shape=(*outer, count // side, side),
        strides_bytes=(*row.strides_bytes[:-1], side * WORD.itemsize, WORD.itemsize),
    )


_OF_ARRAY = re.compile(r"^array(?:\.|'s )")


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Call the array by its argument's name in errors."""
    try:
        yield
    except TensorMapError as error:
        raise TensorMapError(
            tuple(
                replace(one, argument=f"{name}'s {_OF_ARRAY.sub('', one.argument)}")
                for one in error.violations
            )
        ) from None


def ragged_kernel(entry: str, packed_type: str, padded_type: str, pipeline: CopyPipeline) -> Kernel:
    return shipped_kernel(
        "ragged.cu",
        {"Packed": packed_type, "Padded": padded_type},
        {
            "STAGES": pipeline.stages,
            "LOADS_AHEAD": pipeline.loads_ahead,
            "TILES": pipeline.tiles_per_block,
            "PADDING_TILES": PADDING_TILES,
        },
        entry,
    )
