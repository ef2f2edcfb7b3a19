"""The kernel gemm.cu: its tiles and its builds."""

from __future__ import annotations

import functools

from tmaasync._arrays import ArrayView
from tmaasync._compile import digest, file_digest, reached
from tmaasync._sources import find_kernel, include_dir, kernels_dir
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
    a_tile = operand_tile(a, rows, k_major=not a_transposed, parts=blocking.a_parts)
    # b is [K, N]: K is contiguous where it was transposed.
    b_tile = operand_tile(b, columns, k_major=b_transposed, parts=blocking.b_parts)
    return a_tile, b_tile, output_tile(c, blocking)


def operand_tile(view: ArrayView, side: int, *, k_major: bool, parts: int) -> TMATensorTile:
    """``side`` of M or N by `BLOCK_K_BYTES`; in at least ``parts`` boxes, one for each CTA.

    Of a batch of matrices, of one of them.
    """
    # Where rows start off the lines of L2, fetching more than is asked for costs up to 7 %.
    on_lines = view.strides_bytes[-2] % LINE_BYTES == 0
    promotion = L2Promotion.B256 if on_lines else L2Promotion.NONE
    depth = BLOCK_K_BYTES // view.element.itemsize
    one = (1,) * (view.ndim - 2)
    shape = (*one, side, depth) if k_major else (*one, depth, side)
    box = (*one, side // parts, depth) if k_major else None
    return create_tma_tile(view, shape, swizzle=Swizzle.B128, box_shape=box, l2_promotion=promotion)


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
    headers = reached(source.read_text(), (include_dir(), kernels_dir()))
    return digest("".join(map(file_digest, (source, *headers))).encode())


def gemm_constants(a_transposed: bool, b_transposed: bool, blocking: Blocking) -> dict[str, int]:
    """What the kernel is compiled with beside the types of its tiles."""
    return {
        **blocking.constants,
        "A_IS_K_MAJOR": not a_transposed,
        "B_IS_K_MAJOR": b_transposed,
    }
