"""A tile that wgmma reads from shared memory: its sides and its box."""

from __future__ import annotations

from collections.abc import Sequence

from tmaasync._kinds import check_flags
from tmaasync._tile.cut import argument_violations, equal_part, sides_of
from tmaasync._tile.packed import view_and_element
from tmaasync._tile.tensor import TMATensorTile, create_tma_tile
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import Swizzle, SwizzleName


def create_tensor_tile(
    array: object,
    tile_shape: Sequence[int],
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    k_major_tma: bool = True,
    dtype: object = None,
    arch: str = "sm_90a",
) -> TMATensorTile:
    """Describe a tile in the shared-memory layout of a wgmma operand: one box per chunk.

    A chunk is the swizzle's span, or 16 bytes without swizzle. The layout is therefore always
    ``[chunks][other sides][chunk]``; without swizzle `create_tma_tile` would use a single box.
    (PTX ISA, "Shared memory matrix layout" of ``wgmma``.)

    Args:
        array: As in `create_tma_tile`; 1 to 5 dimensions.
        tile_shape: Elements per side, outermost first. With ``k_major_tma=False`` it is
            (M or N, K), the reverse of the array's order.
        swizzle: As in `create_tma_tile`.
        k_major_tma: Whether K is the contiguous side. If not, the array is (K, M or N).
        dtype: As in `create_tma_tile`.
        arch: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules of the hardware; every one is listed with a remedy.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> tile = create_tensor_tile(np.zeros((512, 256), np.float16), (128, 64))
    >>> tile.box_shape, tile.boxes_per_tile
    ((128, 8), 8)
    """
    sides = _array_sides(sides_of("tile_shape", tile_shape), k_major=k_major_tma)
    _, kind = view_and_element(array, dtype)
    mode = Swizzle.of(swizzle, "swizzle")
    box = _operand_box(sides, kind.shared_bits, mode)
    return create_tma_tile(array, sides, swizzle=mode, box_shape=box, dtype=dtype, arch=arch)


def _array_sides(tile_shape: tuple[int, ...], *, k_major: bool) -> tuple[int, ...]:
    """Return the tile's sides in the order of the array; without ``k_major`` K comes first there.

    Raises:
        TensorMapError: The sides to swap are not two.
    """
    check_flags(k_major_tma=k_major)
    if k_major:
        return tile_shape
    TensorMapError.raise_for(_order_violations(tile_shape))
    return tile_shape[::-1]


def _operand_box(sides: tuple[int, ...], element_bits: int, swizzle: Swizzle) -> tuple[int, ...]:
    """Return the box of an operand: a chunk wide, 16 bytes without swizzle.

    Raises:
        TensorMapError: A side is no positive integer.
    """
    rank = max(len(sides), 1)
    TensorMapError.raise_for(argument_violations(rank, sides, None, (1,) * rank))
    chunk = min(sides[-1], 8 * swizzle.span_bytes // element_bits)
    return (*(equal_part(side) for side in sides[:-1]), chunk)


def _order_violations(tile_shape: tuple[int, ...]) -> list[Violation]:
    if len(tile_shape) == 2:
        return []
    return [
        Violation(
            "k_major_tma",
            False,
            f"it swaps the two sides of a matrix, and tile_shape has {len(tile_shape)}",
            "Leave it out, and give tile_shape in the order of the array",
        )
    ]
