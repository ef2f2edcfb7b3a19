"""Tiles whose rows are gathered from anywhere in a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tmaasync import _arrays
from tmaasync._elements import element
from tmaasync.errors import Violation
from tmaasync.modes import L2Promotion, OOBFill, Swizzle
from tmaasync.tile.cut import BOX_START_ALIGNMENT, equal_part, per_side_violations, raise_if
from tmaasync.tile.tiled import TMATensorTile, create_tma_tile

__all__ = ["create_tma_tile_gather4", "gather4_tile_bytes"]

_ROWS_PER_GATHER = 4


def create_tma_tile_gather4(
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle = Swizzle.NONE,
    l2_promotion: L2Promotion = L2Promotion.B128,
    oob_fill: OOBFill = OOBFill.ZERO,
    dtype: object = None,
) -> TMATensorTile:
    """Describe a tile of a matrix whose rows a kernel picks by number, four at a time.

    The gather instruction needs sm_100. Here a box is one row of a chunk, and
    ``async_copy_gather4`` issues one for each: in shared memory the tile is
    ``[chunks][rows][chunk]`` as there. A row number outside the matrix gives fill; so do columns
    beyond its last.

    Args:
        array: A matrix, its rows contiguous, as in `create_tma_tile`.
        tile_shape: Rows, a multiple of 4, and columns.
        swizzle: ``NONE`` or ``B128``: every row of a chunk starts at a multiple of 128 bytes.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules; every one is listed with a remedy.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tma_tile_gather4(
    ...     np.zeros((1000, 512), np.float16), (16, 128), swizzle=Swizzle.B128
    ... )
    >>> tile.box_shape, tile.boxes_per_tile, tile.tile_bytes
    ((1, 64), 32, 4096)
    """
    view = _arrays.view(array, dtype=dtype)
    sides = tuple(tile_shape)
    raise_if(list(_gather_violations(view.ndim, sides, view.element.itemsize, swizzle)))
    box = (1, _chunk(sides[1], view.element.itemsize, swizzle))
    return create_tma_tile(
        array,
        sides,
        swizzle=swizzle,
        box_shape=box,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
        dtype=dtype,
    )


def gather4_tile_bytes(
    tile_shape: Sequence[int], dtype: object, *, swizzle: Swizzle = Swizzle.NONE
) -> int:
    """Bytes that a gathered tile takes, and that a barrier must expect for it: whole chunks.

    Args:
        tile_shape: Rows, a multiple of 4, and columns.
        dtype: The element type.
        swizzle: ``NONE`` or ``B128``.

    Raises:
        TensorMapError: There is no such tile.

    >>> gather4_tile_bytes((4, 100), "float16", swizzle=Swizzle.B128)
    1024
    """
    sides, itemsize = tuple(tile_shape), element(dtype).itemsize
    raise_if(list(_gather_violations(2, sides, itemsize, swizzle)))
    chunk = _chunk(sides[1], itemsize, swizzle)
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
            "-1 for those that are not needed",
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
