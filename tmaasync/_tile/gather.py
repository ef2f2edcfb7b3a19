"""Box and bytes of a tile of rows gathered from a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tmaasync._elements import element
from tmaasync._hardware import BOX_START_ALIGNMENT
from tmaasync._tile.cut import equal_part, per_side_violations, sides_of
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import Swizzle, SwizzleName

__all__ = ["gather4_box", "gather4_tile_bytes"]

_ROWS_PER_GATHER = 4


def gather4_box(
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
    _, chunk = gather4_box(2, sides, itemsize, Swizzle.of(swizzle, "swizzle"))
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
