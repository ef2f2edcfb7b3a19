"""The sides and the box of a tile that wgmma reads from shared memory."""

from __future__ import annotations

from tmaasync._kinds import check_flags
from tmaasync._tile.cut import argument_violations, equal_part
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import Swizzle

__all__ = ["array_sides", "operand_box"]


def array_sides(tile_shape: tuple[int, ...], *, k_major: bool) -> tuple[int, ...]:
    """Return the tile's sides in the order of the array; without ``k_major`` K comes first there.

    Raises:
        TensorMapError: The sides to swap are not two.
    """
    check_flags(k_major_tma=k_major)
    if k_major:
        return tile_shape
    TensorMapError.raise_for(_order_violations(tile_shape))
    return tile_shape[::-1]


def operand_box(sides: tuple[int, ...], itemsize: int, swizzle: Swizzle) -> tuple[int, ...]:
    """Return the box of an operand: a chunk wide, 16 bytes without swizzle.

    Raises:
        TensorMapError: A side is no positive integer.
    """
    rank = max(len(sides), 1)
    TensorMapError.raise_for(argument_violations(rank, sides, None, (1,) * rank))
    chunk = min(sides[-1], swizzle.span_bytes // itemsize)
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
