"""Tiles: what one TMA call moves between an array and shared memory."""

from tmaasync.tile.argument import KernelArgument
from tmaasync.tile.array import TMATensorTileArray
from tmaasync.tile.bulk import BulkTile
from tmaasync.tile.gather import create_tma_tile_gather4, gather4_tile_bytes
from tmaasync.tile.im2col import TMATensorTileIm2col, create_tma_tile_im2col
from tmaasync.tile.split import SplitLastDimTMATensorTile, create_split_tma
from tmaasync.tile.strided import StridedTensor
from tmaasync.tile.template import TMATensorTileTemplate, create_tma_tile_template
from tmaasync.tile.tiled import TMATensorTile, create_tensor_tile, create_tma_tile

__all__ = [
    "BulkTile",
    "KernelArgument",
    "SplitLastDimTMATensorTile",
    "StridedTensor",
    "TMATensorTile",
    "TMATensorTileArray",
    "TMATensorTileIm2col",
    "TMATensorTileTemplate",
    "create_split_tma",
    "create_tensor_tile",
    "create_tma_tile",
    "create_tma_tile_gather4",
    "create_tma_tile_im2col",
    "create_tma_tile_template",
    "gather4_tile_bytes",
]
