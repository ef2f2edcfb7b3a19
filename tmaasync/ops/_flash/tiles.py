"""Tiles, maps and kernels of attention for a variant and a tile config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.ops._flash.config import TileConfig, Variant, widest
from tmaasync.ops._flash.cost_model import rows_per_load
from tmaasync.ops._operation import shipped_kernel
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map
from tmaasync.tile import TMATensorTile, create_tma_tile

COMBINE_THREADS = 512
"""Threads of a CTA of the combine kernel: a warp for every fourth row."""

TRANSPOSED_KEYS = 128
"""Keys that a CTA transposes the values of."""

_WARP_THREADS = 32

Tiles = tuple[TMATensorTile, TMATensorTile, TMATensorTile, TMATensorTile]
"""The tiles of q, k, v and the output."""

Maps = tuple[RaggedTensorMap, RaggedTensorMap, RaggedTensorMap, RaggedTensorMap]
"""The maps of q, k, v and the output."""

# --- tiles --------------------------------------------------------------------------------------


def attention_tiles(
    q: ArrayView, k: ArrayView, v: ArrayView, o: ArrayView, config: TileConfig
) -> Tiles:
    """Return the kernel's tiles over arrays of [batch, positions, heads, head_dim].

    For FP8 without ``transposes_v``, V is transposed: [batch, kv_heads, head_dim, positions].
    """
    rows, block = _sides(config)
    queries = create_tma_tile(q, (1, *rows), swizzle=config.swizzle)
    keys = _tile_of_keys(k, block, config)
    if config.element_bytes == 1 and not config.transposes_v:
        values = _tile_of_transposed(v, config)
    else:
        values = _tile_of_keys(v, block, config)
    return queries, keys, values, create_tma_tile(o, (1, *rows), swizzle=config.output_swizzle)


def _tile_of_keys(
    view: ArrayView, block: tuple[int, int, int], config: TileConfig
) -> TMATensorTile:
    """Return a tile whose boxes divide evenly among the CTAs of a cluster."""
    columns = config.swizzle.span_bytes // view.element.itemsize
    is_shared_in_columns = config.head_dim // columns % config.cluster == 0
    box = None if is_shared_in_columns else (1, block[0] // config.cluster, 1, columns)
    return create_tma_tile(view, (1, *block), swizzle=config.swizzle, box_shape=box)


def _tile_of_transposed(view: ArrayView, config: TileConfig) -> TMATensorTile:
    """Return the same tile for transposed V, whose rows are the columns of a head."""
    swizzle = widest(config.block_n)
    columns, keys = config.head_dim, config.block_n
    box = (1, 1, columns // config.cluster, swizzle.span_bytes)
    return create_tma_tile(view, (1, 1, columns, keys), swizzle=swizzle, box_shape=box)


def transpose_tiles(
    v: ArrayView, transposed: ArrayView, config: TileConfig
) -> tuple[TMATensorTile, TMATensorTile]:
    """Return the tiles of attention_values.cu: FP8 V, and transposed V."""
    keys, columns = TRANSPOSED_KEYS, config.head_dim
    return (
        create_tma_tile(v, (1, keys, 1, columns), swizzle=config.swizzle),
        create_tma_tile(transposed, (1, 1, columns, keys), swizzle=widest(keys)),
    )


def packed_maps(
    q: ArrayView, k: ArrayView, v: ArrayView, o: ArrayView, config: TileConfig, page_size: int = 0
) -> Maps:
    """Return the kernel's maps over packed arrays of [rows, heads, head_dim].

    With a paged KV cache k and v hold the rows of all pages; a page is one sequence of the map.
    """
    rows, block = _sides(config)
    columns = config.swizzle.span_bytes // config.element_bytes
    box = (rows_per_load(page_size, config.block_n), 1, columns)

    def map_of(view: ArrayView, side: tuple[int, ...], **options: Any) -> RaggedTensorMap:
        return create_ragged_tensor_map(view, side, **{"swizzle": config.swizzle, **options})

    pages = {"box_shape": box, "max_length": page_size or None}
    return (
        map_of(q, rows),
        map_of(k, block, **pages),
        map_of(v, block, **pages),
        map_of(o, rows, swizzle=config.output_swizzle),
    )


def _sides(config: TileConfig) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the tile sides of queries that are loaded at once and of a block of keys."""
    heads = config.heads_per_tile
    rows = (config.query_rows // heads, heads, config.head_dim)
    return rows, (config.block_n, 1, config.head_dim)


# --- kernels ------------------------------------------------------------------------------------


def cuda_types(tiles: Sequence[TMATensorTile | RaggedTensorMap]) -> tuple[str, ...]:
    return tuple(tile.cuda_type for tile in tiles)


def attention_kernel(types: tuple[str, ...], variant: Variant, config: TileConfig) -> Kernel:
    """Return attention.cu, or the kernel of tensor memory, for the types of its tiles or maps."""
    constants = {**config.constants, **variant.constants}
    return shipped_kernel(config.source, _named(types), constants)


def combine_kernel(types: tuple[str, ...], variant: Variant, config: TileConfig) -> Kernel:
    """Return the combine kernel of split-KV (flash-decoding) for an attention kernel."""
    constants = {**config.constants, **variant.constants, "WARPS": COMBINE_THREADS // _WARP_THREADS}
    return shipped_kernel("attention_combine.cu", _named(types), constants)


def _named(types: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(("QTile", "KTile", "VTile", "OTile"), types, strict=True))


def transpose_kernel(types: tuple[str, ...], config: TileConfig) -> Kernel:
    """Return attention_values.cu, which transposes FP8 V, for its two tile types."""
    named = dict(zip(("VTile", "TransposedTile"), types, strict=True))
    return shipped_kernel("attention_values.cu", named, {"HEAD_DIM": config.head_dim})


_OF_SCHEDULER = (
    "CONSUMERS",
    "BLOCK_N",
    "HEADS_PER_TILE",
    "CLUSTER",
    "SPLITS_KEYS",
    "ONE_TILE_EACH",
    "HAS_LEFT",
    "HAS_RIGHT",
    "PAGE_SIZE",
)


def work_list_kernel(variant: Variant, config: TileConfig) -> Kernel:
    """Return attention_work.cu, which cuts packed sequences into tiles for this variant."""
    constants = {**config.constants, **variant.constants}
    return shipped_kernel(
        "attention_work.cu", {}, {name: constants[name] for name in _OF_SCHEDULER}
    )
