"""Tiles of rows gathered from a matrix: their box and bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tmaasync._elements import Element, element, packed_element
from tmaasync._hardware import BOX_START_ALIGNMENT, WIDE_MAP_ARCHS
from tmaasync._tile.cut import Cut, cut_violations, equal_part, per_side_violations, sides_of
from tmaasync._tile.form import TileForm
from tmaasync._tile.packed import view_and_element
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
from tmaasync.tensormap.form import unknown_arch

_ROWS_PER_GATHER = 4


def create_tma_tile_gather4(
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    dtype: object = None,
    arch: str = "sm_90a",
) -> TMATensorTile:
    """Describe a tile of a matrix whose rows a kernel gathers by index, four at a time.

    TMA's gather4 instruction needs sm_100. On Hopper a box is one row of a chunk, and
    ``async_copy_gather4`` issues one load per box. The layout in shared memory is the same:
    ``[chunks][rows][chunk]``. Rows and columns outside the matrix are filled.

    Args:
        array: A matrix (rows, columns) with contiguous rows, as in `create_tma_tile`.
        tile_shape: Rows, a multiple of 4, and columns.
        swizzle: As in `create_tma_tile`. For Hopper ``"none"`` or ``"128B"``: every row of a chunk
            starts at a multiple of 128 bytes.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        dtype: As in `create_tma_tile`.
        arch: With ``"sm_100a"`` or ``"sm_103a"`` the tile is for the instructions of four rows:
            ``async_copy_gather4`` issues one per chunk, and ``async_store_scatter4`` stores four
            rows. Not run on a chip.

    Raises:
        TensorMapError: The tile breaks rules; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    Sources: cuda.h on ``cuTensorMapEncodeTiled``; PTX ISA, "Tiled::gather4 and Tiled::scatter4
    modes".

    >>> import numpy as np
    >>> matrix = np.zeros((1000, 512), np.float16)
    >>> tile = create_tma_tile_gather4(matrix, (16, 128), swizzle=Swizzle.B128)
    >>> tile.box_shape, tile.boxes_per_tile, tile.tile_bytes
    ((1, 64), 32, 4096)
    >>> tile = create_tma_tile_gather4(matrix, (16, 128), swizzle="128B", arch="sm_100a")
    >>> tile.box_shape, tile.boxes_per_tile
    ((4, 64), 8)
    """
    view, kind = view_and_element(array, dtype)
    sides, mode = sides_of("tile_shape", tile_shape), Swizzle.of(swizzle, "swizzle")
    box = _gather4_box(view.ndim, sides, kind, mode, arch)
    tile = create_tma_tile(
        array,
        sides if box[0] == 1 else (1, box[1]),
        swizzle=mode,
        box_shape=(1, box[1]),
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
        dtype=dtype,
        arch=arch,
    )
    if box[0] == 1:
        return tile
    form = _form_of_four_rows(tile._form, Cut(kind, sides, box, (1, 1), mode))
    return TMATensorTile(form, tile._address, tile._owner, tile._lease)


@functools.lru_cache(maxsize=256)
def _form_of_four_rows(form: TileForm, cut: Cut) -> TileForm:
    """Return the form of a tile whose instruction moves four boxes of the map, which has one row.

    Raises:
        TensorMapError: The tile breaks rules of shared memory.
    """
    TensorMapError.raise_for(cut_violations(cut))
    name = cut.cuda_type().replace("TMATensorTile", "TMATensorTileGather4")
    return replace(form, cut=cut, cuda_type=name)


def _gather4_box(
    rank: int, tile_shape: tuple[int, ...], kind: Element, swizzle: Swizzle, arch: str
) -> tuple[int, int]:
    """Return the box of a gathered tile in shared memory: one row of a chunk, or four.

    Raises:
        TensorMapError: The array is no matrix, the rows are no multiple of 4, or a row of a chunk
            is no multiple of 128 bytes on Hopper.
    """
    TensorMapError.raise_for(_gather_violations(rank, tile_shape, kind, swizzle, arch))
    rows = _ROWS_PER_GATHER if arch in WIDE_MAP_ARCHS else 1
    return rows, _chunk(tile_shape[1], kind, swizzle)


def gather4_tile_bytes(
    tile_shape: Sequence[int],
    dtype: object,
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    arch: str = "sm_90a",
) -> int:
    """Return the bytes that a barrier must expect for a gathered tile: whole chunks.

    Args:
        tile_shape: Rows, a multiple of 4, and columns.
        dtype: The element type.
        swizzle: As in `create_tma_tile_gather4`.
        arch: As in `create_tma_tile_gather4`.

    Raises:
        TensorMapError: The rows are no multiple of 4, or on Hopper a row of a chunk is no multiple
            of 128 bytes.
        ArgumentError: ``swizzle`` names no mode.
        ArrayTypeError: ``dtype`` names no element type.

    >>> gather4_tile_bytes((4, 100), "float16", swizzle="128B")
    1024
    """
    sides, kind = sides_of("tile_shape", tile_shape), packed_element(dtype) or element(dtype)
    _, chunk = _gather4_box(2, sides, kind, Swizzle.of(swizzle, "swizzle"), arch)
    return sides[0] * math.ceil(sides[1] / chunk) * chunk * kind.data_type.bits // 8


def _chunk(columns: int, kind: Element, swizzle: Swizzle) -> int:
    if kind.data_type.has_gaps:
        swizzle = Swizzle.B128  # 128 elements, in 128 bytes
    if swizzle is Swizzle.NONE:
        return equal_part(columns)
    return 8 * swizzle.span_bytes // kind.shared_bits


def _gather_violations(
    rank: int, tile_shape: tuple[int, ...], kind: Element, swizzle: Swizzle, arch: str
) -> Iterator[Violation]:
    if rank != 2:
        yield Violation(
            "array",
            f"of {rank} dimensions",
            "rows are gathered from a matrix",
            "Reshape it to (rows, columns)",
        )
        return
    found = [*per_side_violations(2, "tile_shape", tile_shape), *unknown_arch(arch)]
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
    row_bytes = _chunk(tile_shape[1], kind, swizzle) * kind.shared_bits // 8
    if arch not in WIDE_MAP_ARCHS and row_bytes % BOX_START_ALIGNMENT:
        yield Violation(
            "swizzle",
            swizzle,
            f"every row of a chunk is a box of its own, and {row_bytes} bytes would start the next "
            f"one off a multiple of {BOX_START_ALIGNMENT}; four rows in one box need sm_100",
            "Use Swizzle.B128, or no swizzle and rows of a multiple of 128 bytes, or pass "
            'arch="sm_100a"',
        )
