"""Tiles of rows gathered from a matrix: their box and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tmaasync import _arrays
from tmaasync._elements import element
from tmaasync._hardware import BOX_START_ALIGNMENT
from tmaasync._tile.cut import equal_part, per_side_violations, sides_of
from tmaasync._tile.tensor import TMATensorTile, create_tma_tile
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import (
    L2Promotion,
    L2PromotionName,
    OOBFill,
    OOBFillName,
    Swizzle,
    SwizzleName,
)

_ROWS_PER_GATHER = 4


def create_tma_tile_gather4(
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
) -> TMATensorTile:
    """Describe a tile of a matrix whose rows a kernel gathers by index, four at a time.

    TMA's gather4 instruction needs sm_100. On Hopper a box is one row of a chunk, and
    ``async_copy_gather4`` issues one load per box. The layout in shared memory is the same:
    ``[chunks][rows][chunk]``. Rows and columns outside the matrix are filled.

    Args:
        array: A matrix (rows, columns) with contiguous rows, as in `create_tma_tile`.
        tile_shape: Rows, a multiple of 4, and columns.
        swizzle: ``"none"`` or ``"128B"``: every row of a chunk starts at a multiple of 128 bytes.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tma_tile_gather4(
    ...     np.zeros((1000, 512), np.float16), (16, 128), swizzle=Swizzle.B128
    ... )
    >>> tile.box_shape, tile.boxes_per_tile, tile.tile_bytes
    ((1, 64), 32, 4096)
    """
    view = _arrays.view(array, dtype=dtype)
    sides, mode = sides_of("tile_shape", tile_shape), Swizzle.of(swizzle, "swizzle")
    box = _gather4_box(view.ndim, sides, view.element.itemsize, mode)
    return create_tma_tile(
        array,
        sides,
        swizzle=mode,
        box_shape=box,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
        dtype=dtype,
    )


def _gather4_box(
    rank: int, tile_shape: tuple[int, ...], itemsize: int, swizzle: Swizzle
) -> tuple[int, int]:
    """Return the box of a gathered tile: one row of a chunk.

    Raises:
        TensorMapError: The array is no matrix, the rows are no multiple of 4, or a row of a chunk
            is no multiple of 128 bytes.
    """
    TensorMapError.raise_for(_gather_violations(rank, tile_shape, itemsize, swizzle))
    return 1, _chunk(tile_shape[1], itemsize, swizzle)


def gather4_tile_bytes(
    tile_shape: Sequence[int], dtype: object, *, swizzle: Swizzle | SwizzleName = Swizzle.NONE
) -> int:
    """Return the bytes that a barrier must expect for a gathered tile: whole chunks.

    Args:
        tile_shape: Rows, a multiple of 4, and columns.
        dtype: The element type.
        swizzle: ``"none"`` or ``"128B"``, or a member of `Swizzle`.

    Raises:
        TensorMapError: The rows are no multiple of 4, or a row of a chunk is no multiple of 128
            bytes.
        ArgumentError: ``swizzle`` names no mode.
        ArrayTypeError: ``dtype`` names no element type.

    >>> gather4_tile_bytes((4, 100), "float16", swizzle="128B")
    1024
    """
    sides, itemsize = sides_of("tile_shape", tile_shape), element(dtype).itemsize
    _, chunk = _gather4_box(2, sides, itemsize, Swizzle.of(swizzle, "swizzle"))
    return sides[0] * math.ceil(sides[1] / chunk) * chunk * itemsize


def _chunk(columns: int, itemsize: int, swizzle: Swizzle) -> int:
    return equal_part(columns) if swizzle is Swizzle.NONE else swizzle.span_bytes // itemsize


def _gather_violations(
    rank: int, tile_shape: tuple[int, ...], itemsize: int, swizzle: Swizzle
) -> Iterator[Violation]:
    if rank != 2:
        yield Violation(
            "array",
            f"of {rank} dimensions",
            "rows are gathered from a matrix",
            "Reshape it to (rows, columns)",
        )
        return
    found = list(per_side_violations(2, "tile_shape", tile_shape))
    if found:
        yield from found
        return
    if tile_shape[0] % _ROWS_PER_GATHER:
        yield Violation(
            "tile_shape[0]",
            tile_shape[0],
            "rows are gathered four at a time",
            f"Use {math.ceil(tile_shape[0] / _ROWS_PER_GATHER) * _ROWS_PER_GATHER} rows, and row "
            "-1 for rows that are not needed",
        )
    row_bytes = _chunk(tile_shape[1], itemsize, swizzle) * itemsize
    if row_bytes % BOX_START_ALIGNMENT:
        yield Violation(
            "swizzle",
            swizzle,
            f"every row of a chunk is a box of its own, and {row_bytes} bytes would start the next "
            f"one off a multiple of {BOX_START_ALIGNMENT}; four rows in one box need sm_100",
            "Use Swizzle.B128, or no swizzle and rows of a multiple of 128 bytes",
        )
