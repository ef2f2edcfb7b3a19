"""The kernel gemm.cu: its tiles and its builds."""

from __future__ import annotations

import functools

from tmaasync._arrays import ArrayView
from tmaasync._compile import digest, file_digest, reached
from tmaasync._sources import find_kernel, include_dir
from tmaasync.kernel import Kernel
from tmaasync.modes import L2Promotion, Swizzle
from tmaasync.ops._blocking import BLOCK_K_BYTES, Blocking, output_tile
from tmaasync.ops.gemm.extras import ProductEpilogue
from tmaasync.tile import TMATensorTile, create_tma_tile

LINE_BYTES = 128
"""What L2 is asked for."""

__all__ = [
    "LINE_BYTES",
    "gemm_constants",
    "gemm_kernel",
    "gemm_tiles",
    "kernel_digest",
    "operand_tile",
    "promotion_of",
]


def gemm_tiles(
    a: ArrayView,
    b: ArrayView,
    c: ArrayView,
    blocking: Blocking,
    a_transposed: bool,
    b_transposed: bool,
) -> tuple[TMATensorTile, TMATensorTile, TMATensorTile]:
    """The tiles that the kernel takes, over matrices whose rows TMA can read."""
    rows, columns = blocking.block_m, blocking.block_n
    # b is [K, N]: K is contiguous where it was transposed.
    m, n = a.shape[-1 if a_transposed else -2], b.shape[-2 if b_transposed else -1]
    a_tile = operand_tile(
        a, rows, k_major=not a_transposed, parts=blocking.a_parts, is_read_once=n <= columns
    )
    b_tile = operand_tile(
        b, columns, k_major=b_transposed, parts=blocking.b_parts, is_read_once=m <= rows
    )
    return a_tile, b_tile, output_tile(c, blocking)


def operand_tile(
    view: ArrayView, side: int, *, k_major: bool, parts: int, is_read_once: bool = False
) -> TMATensorTile:
    """``side`` of M or N by `BLOCK_K_BYTES`; in at least ``parts`` boxes, one for each CTA.

    Of a batch of matrices, of one of them.

    Args:
        view: The matrix, or the batch.
        side: Rows of M or columns of N of a block.
        k_major: Whether K is contiguous.
        parts: CTAs that share a tile's loads.
        is_read_once: Whether one block of the output takes all that this operand gives it.
    """
    promotion = promotion_of(view, is_read_once=is_read_once)
    depth = BLOCK_K_BYTES // view.element.itemsize
    one = (1,) * (view.ndim - 2)
    shape = (*one, side, depth) if k_major else (*one, depth, side)
    box = (*one, side // parts, depth) if k_major else None
    return create_tma_tile(view, shape, swizzle=Swizzle.B128, box_shape=box, l2_promotion=promotion)


def promotion_of(view: ArrayView, *, is_read_once: bool) -> L2Promotion:
    """What L2 fetches at least of an operand (measured on an H200).

    What comes from memory once comes up to 6 % faster if it is no more than a line; what comes from
    L2 again and again, up to 2 % faster if it is two. Where rows start off the lines, fetching more
    than is asked for costs up to 7 %.
    """
    if view.strides_bytes[-2] % LINE_BYTES != 0:
        return L2Promotion.NONE
    return L2Promotion.B128 if is_read_once else L2Promotion.B256


@functools.cache
def gemm_kernel(  # noqa: PLR0913 - what it is compiled for
    a: str,
    b: str,
    c: str,
    a_transposed: bool,
    b_transposed: bool,
    blocking: Blocking,
    epilogue: ProductEpilogue | None = None,
    bias: str = "float",
) -> Kernel:
    """The kernel for three types of tile and a blocking; with an epilogue, gemm_epilogue.cu."""
    types = {"ATile": a, "BTile": b, "CTile": c}
    constants = gemm_constants(a_transposed, b_transposed, blocking)
    if epilogue is None:
        return Kernel("gemm.cu", types=types, constants=constants)
    return Kernel(
        "gemm_epilogue.cu",
        types={**types, "Bias": bias},
        constants={**constants, **epilogue.constants},
    )


@functools.cache
def kernel_digest() -> str:
    """A hash of the kernel's source and of every header of ours that it includes."""
    source = find_kernel("gemm.cu")
    headers = reached(source.read_text(), (include_dir(), source.parent))
    return digest("".join(map(file_digest, (source, *headers))).encode())


def gemm_constants(a_transposed: bool, b_transposed: bool, blocking: Blocking) -> dict[str, int]:
    """What the kernel is compiled with beside the types of its tiles."""
    return {
        **blocking.constants,
        "A_IS_K_MAJOR": not a_transposed,
        "B_IS_K_MAJOR": b_transposed,
    }
