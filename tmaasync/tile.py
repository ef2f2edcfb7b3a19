"""Tiles: the parts of an array that one device call moves to or from shared memory.

One TMA instruction moves a box; a tile is one or more boxes. The 128-byte tensor map holds the
array's address, shape and strides, and the box shape. The tile's CUDA C++ type, ``cuda_type``,
holds the shapes, swizzle and byte counts that the compiler needs.

| device call | moves one tile | out of bounds | complete when |
|---|---|---|---|
| ``async_copy`` | array to shared memory | writes fill | `tile_bytes` landed on its barrier |
| ``async_multicast_load`` | the same, to many CTAs | writes fill | the same, in every CTA |
| ``async_store`` | shared memory to array | is dropped | ``commit_group``, ``wait_group`` |
| ``async_reduce`` | the same, combining | is dropped | the same |

Fill bytes count as landed: a barrier expects the full `tile_bytes` at the array's edges too.

| swizzle | default box | tile in shared memory |
|---|---|---|
| ``NONE`` | the tile, in equal parts of at most 256 elements a side | box after box, row-major |
| ``B32``, ``B64``, ``B128`` | last side: 32, 64, 128 bytes | ``[chunks][other sides][chunk]`` |

| factory | source | tile |
|---|---|---|
| `create_tma_tile` | an array of 1 to 5 dimensions | `TMATensorTile` |
| `create_tensor_tile` | an operand of wgmma | `TMATensorTile` |
| `create_tma_tile_gather4` | rows of a matrix, gathered by index | `TMATensorTile` |
| `create_tma_tile_template` | no array yet | `TMATensorTileTemplate` |
| `create_split_tma` | memory with extents known at run time | `SplitLastDimTMATensorTile` |
| `create_tma_tile_im2col` | images of a convolution (im2col) | `TMATensorTileIm2col` |
| `create_tma_tile_im2col_w` | pixels along the width, with halos | `TMATensorTileIm2colW` |

Shapes list the outermost side first, device coordinates the innermost. (PTX ISA, "Tensors".)
"""

from tmaasync._tile.argument import KernelArgument
from tmaasync._tile.array import TMATensorTileArray
from tmaasync._tile.bulk import BulkTile
from tmaasync._tile.gather import create_tma_tile_gather4, gather4_tile_bytes
from tmaasync._tile.im2col import TMATensorTileIm2col, create_tma_tile_im2col
from tmaasync._tile.im2col_w import TMATensorTileIm2colW, create_tma_tile_im2col_w
from tmaasync._tile.operand import create_tensor_tile
from tmaasync._tile.pointer import Pointer
from tmaasync._tile.split import SplitLastDimTMATensorTile, create_split_tma
from tmaasync._tile.strided import StridedTensor
from tmaasync._tile.template import TMATensorTileTemplate, create_tma_tile_template
from tmaasync._tile.tensor import TMATensorTile, create_tma_tile

__all__ = [
    "BulkTile",
    "KernelArgument",
    "Pointer",
    "SplitLastDimTMATensorTile",
    "StridedTensor",
    "TMATensorTile",
    "TMATensorTileArray",
    "TMATensorTileIm2col",
    "TMATensorTileIm2colW",
    "TMATensorTileTemplate",
    "create_split_tma",
    "create_tensor_tile",
    "create_tma_tile",
    "create_tma_tile_gather4",
    "create_tma_tile_im2col",
    "create_tma_tile_im2col_w",
    "create_tma_tile_template",
    "gather4_tile_bytes",
]
