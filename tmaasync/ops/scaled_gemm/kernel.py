"""The kernel scaled_gemm.cu: its tiles and its builds."""

from __future__ import annotations

import functools
from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.ops._blocking import output_tile
from tmaasync.ops.gemm.kernel import promotion_of
from tmaasync.ops.scaled_gemm.blocking import SCALE_BLOCK, SCALES_PER_LOAD, ScaledBlocking
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = ["ScaledTiles", "scaled_gemm_constants", "scaled_gemm_kernel", "scaled_gemm_tiles"]


class ScaledTiles(NamedTuple):
    """The tiles that the kernel takes, in its order."""

    a: TMATensorTile
    b: TMATensorTile
    a_scales: TMATensorTile
    b_scales: TMATensorTile
    c: TMATensorTile

    @property
    def cuda_types(self) -> tuple[str, ...]:
        """Their types in CUDA C++."""
        return tuple(tile.cuda_type for tile in self)


def scaled_gemm_tiles(
    operands: tuple[ArrayView, ArrayView, ArrayView, ArrayView],
    c: ArrayView,
    blocking: ScaledBlocking,
    *,
    b_scales_transposed: bool,
) -> ScaledTiles:
    """The tiles over matrices whose rows TMA can read.

    Args:
        operands: [M, K], [N, K], the scales of A as [K / 128, M], and those of B as [K / 128, N],
            [K / 128, N / 128] or, transposed, [N / 128, K / 128].
        c: [M, N].
        blocking: How the output is cut.
        b_scales_transposed: Whether the scales of B are given transposed.
    """
    a, b, a_scales, b_scales = operands
    rows, columns = blocking.block_m, blocking.block_n
    return ScaledTiles(
        _operand_tile(a, rows, 1, is_read_once=b.shape[0] <= columns),
        _operand_tile(b, columns, blocking.cluster, is_read_once=a.shape[0] <= rows),
        create_tma_tile(a_scales, (1, blocking.block_m)),
        create_tma_tile(b_scales, _b_scale_shape(blocking, b_scales_transposed)),
        output_tile(c, blocking),
    )


def _operand_tile(view: ArrayView, side: int, parts: int, *, is_read_once: bool) -> TMATensorTile:
    """``side`` rows of M or N by 128 of K; a box for each CTA that loads a part."""
    box, promotion = (side // parts, SCALE_BLOCK), promotion_of(view, is_read_once=is_read_once)
    return create_tma_tile(
        view, (side, SCALE_BLOCK), swizzle=Swizzle.B128, box_shape=box, l2_promotion=promotion
    )


def _b_scale_shape(blocking: ScaledBlocking, transposed: bool) -> tuple[int, int]:
    if blocking.column_scales:
        return (1, blocking.block_n)
    if transposed:
        return (max(1, blocking.block_n // SCALE_BLOCK), SCALES_PER_LOAD)
    return (1, SCALES_PER_LOAD)


@functools.cache
def scaled_gemm_kernel(
    types: tuple[str, ...], b_scales_transposed: bool, blocking: ScaledBlocking
) -> Kernel:
    """The kernel for the types of its tiles and a blocking."""
    names = ("ATile", "BTile", "AScaleTile", "BScaleTile", "CTile")
    return Kernel(
        "scaled_gemm.cu",
        types=dict(zip(names, types, strict=True)),
        constants=scaled_gemm_constants(b_scales_transposed, blocking),
    )


def scaled_gemm_constants(b_scales_transposed: bool, blocking: ScaledBlocking) -> dict[str, int]:
    """What the kernel is compiled with beside the types of its tiles."""
    return {
        **blocking.constants,
        "B_SCALE_COLUMNS": 1 if blocking.column_scales else SCALE_BLOCK,
        "B_SCALES_ARE_K_MAJOR": b_scales_transposed,
    }
