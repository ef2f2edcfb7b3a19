"""The tiles, arguments and build of conv2d.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._tile.window import Window
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.ops._gemm.config import BLOCK_K_BYTES, TileConfig
from tmaasync.ops._gemm.epilogue import Epilogue
from tmaasync.ops._gemm.tensor_memory import TensorMemoryConfig
from tmaasync.ops._gemm.tiles import output_tile
from tmaasync.ops._operation import shipped_kernel
from tmaasync.tile import (
    TMATensorTile,
    TMATensorTileIm2col,
    create_tma_tile,
    create_tma_tile_im2col,
)

_BOX_SWIZZLES = {64: Swizzle.B128, 32: Swizzle.B64, 16: Swizzle.B32}  # by channels per box


class Conv2dTiles(NamedTuple):
    """The tiles of conv2d.cu: an implicit GEMM of patches, filters and pixels."""

    patches: TMATensorTileIm2col
    filters: TMATensorTile
    out: TMATensorTile


class Conv2dArguments(NamedTuple):
    """The parameters of conv2d.cu; an absent bias is 0."""

    patches: TMATensorTileIm2col
    filters: TMATensorTile
    out: TMATensorTile
    bias: ArrayView | int
    m: int
    n: int
    k: int


def conv2d_tiles(
    images: ArrayView,
    filters: ArrayView,
    out: ArrayView,
    window: Window,
    config: TileConfig,
    channels_per_box: int,
) -> Conv2dTiles:
    """Return the tiles over arrays that TMA can reach; ``out`` is [pixels, K]."""
    swizzle = _BOX_SWIZZLES[channels_per_box]
    patches = create_tma_tile_im2col(
        images,
        (config.block_m, BLOCK_K_BYTES // 2),
        filter_shape=window.taps,
        stride=window.strides,
        dilation=window.dilations,
        lower_corner=window.lower_corner,
        upper_corner=window.upper_corner,
        swizzle=swizzle,
        box_shape=(config.block_m, channels_per_box),
    )
    side, parts = config.b_tile
    taps = create_tma_tile(
        filters,
        (side, 1, 1, BLOCK_K_BYTES // 2),
        swizzle=swizzle,
        # One box per CTA that multicasts it.
        box_shape=(side // parts, 1, 1, channels_per_box),
    )
    return Conv2dTiles(patches, taps, output_tile(out, config))


def conv2d_kernel(
    types: Sequence[str],
    bias: str,
    epilogue: Epilogue,
    config: TileConfig,
    filter_offset: int | None = None,
) -> Kernel:
    """Return the kernel for these tile types, bias type and epilogue.

    With a ``filter_offset`` the pixels are folded: see `FoldedConvolution`.
    """
    patches, *others = types
    named = dict(zip(("BTile", "CTile", "Bias"), (*others, bias), strict=True))
    folding = {"FOLDED": filter_offset is not None, "FILTER_OFFSET": filter_offset or 0}
    constants = {**config.constants, **epilogue.constants, **folding}
    if isinstance(config, TensorMemoryConfig):
        images = {"Images": patches, "ATile": "Images::Matrix"}
        constants |= {"A_IS_K_MAJOR": True, "B_IS_K_MAJOR": True}
        return shipped_kernel("conv2d_tensor_memory.cu", images | named, constants)
    return shipped_kernel("conv2d.cu", {"ATile": patches, **named}, constants)
