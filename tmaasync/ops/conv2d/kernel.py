"""conv2d.cu on the host: how the output is cut, the tiles, what it is compiled with."""

from __future__ import annotations

import functools

from tmaasync._arrays import ArrayView
from tmaasync._tile.window import Window
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.ops._blocking import BLOCK_K_BYTES, Blocking, of_least_time, output_tile
from tmaasync.ops._epilogue import Epilogue
from tmaasync.tile import (
    TMATensorTile,
    TMATensorTileIm2col,
    create_tma_tile,
    create_tma_tile_im2col,
)

__all__ = ["RATE", "choose_blocking", "conv2d_kernel", "conv2d_tiles"]


# Share of the tensor cores' rate that a shape of block, (consumers, rows, block_n), reaches on a
# long sum. The squarer the block, the fewer bytes of patches and filters it loads for each product.
RATE = {
    (2, 128, 160): 1.0,
    (2, 128, 128): 0.99,
    (2, 64, 256): 1.0,
    (2, 64, 192): 0.97,
    (2, 64, 160): 0.965,
    (3, 64, 128): 0.975,
    (2, 64, 128): 0.96,
    (1, 64, 256): 0.91,
    (1, 64, 128): 0.85,
    (2, 128, 64): 0.85,
    (2, 64, 64): 0.8,
    (1, 64, 64): 0.7,
}


def choose_blocking(m: int, k: int, multiprocessors: int) -> Blocking:
    """The blocking of least time: rounds of blocks, times the work of a block over its rate.

    Blocks that reach beyond the last filter or pixel cost as much as whole ones, so 320, 640 or
    1280 filters take blocks of 160. From a few rounds on, pairs of blocks share the loads of
    filters; before, they would only wait for each other.

    Args:
        m: Output pixels of all images.
        k: Filters.
        multiprocessors: How many blocks run at once.
    """
    rates = {
        Blocking(consumers, block_n, rows=rows): rate
        for (consumers, rows, block_n), rate in RATE.items()
    }
    return of_least_time(rates, m, k, multiprocessors)


_BLOCK_K = BLOCK_K_BYTES // 2

# Channels of a chunk, its swizzle, and what its columns cost: narrow chunks take TMA more rows for
# as many bytes (an estimate: benchmarks/bench_conv.py --chunks measures it).
_CHUNKS = {64: (Swizzle.B128, 1.0), 32: (Swizzle.B64, 1.2), 16: (Swizzle.B32, 2.0)}


def choose_chunk(channels: int) -> int:
    """Channels that a box of patches has: few zeros behind the last, or few loads.

    >>> [choose_chunk(channels) for channels in (8, 16, 24, 32, 40, 64, 72, 96, 320)]
    [16, 16, 32, 32, 64, 64, 32, 32, 64]
    """

    def cost(chunk: int) -> float:
        return -(-channels // chunk) * chunk * _CHUNKS[chunk][1]

    return min(_CHUNKS, key=cost)


def conv2d_tiles(
    images: ArrayView, filters: ArrayView, out: ArrayView, window: Window, blocking: Blocking
) -> tuple[TMATensorTileIm2col, TMATensorTile, TMATensorTile]:
    """The tiles that the kernel takes, over arrays that TMA can reach; ``out`` is [pixels, K]."""
    chunk = choose_chunk(images.shape[3])
    swizzle, _ = _CHUNKS[chunk]
    patches = create_tma_tile_im2col(
        images,
        (blocking.block_m, _BLOCK_K),
        filter_shape=window.taps,
        stride=window.strides,
        dilation=window.dilations,
        lower_corner=window.lower_corner,
        upper_corner=window.upper_corner,
        swizzle=swizzle,
        box_shape=(blocking.block_m, chunk),
    )
    taps = create_tma_tile(
        filters,
        (blocking.block_n, 1, 1, _BLOCK_K),
        swizzle=swizzle,
        # One box for each CTA of a cluster: it sends it to all.
        box_shape=(blocking.block_n // blocking.cluster, 1, 1, chunk),
    )
    return patches, taps, output_tile(out, blocking)


@functools.cache
def conv2d_kernel(
    images: str, filters: str, out: str, bias: str, epilogue: Epilogue, blocking: Blocking
) -> Kernel:
    """The kernel for three types of tile, a type of bias, an epilogue and a blocking."""
    return Kernel(
        "conv2d.cu",
        types={"ATile": images, "BTile": filters, "CTile": out, "Bias": bias},
        constants={**blocking.constants, **epilogue.constants},
    )
