"""Which tile config is fastest: a heuristic over numbers measured on the chip."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tmaasync.ops._flash.config import (
    GROUP_ROWS,
    MAX_CONSUMERS,
    Sizes,
    TileConfig,
    Variant,
    padded_dim,
)

__all__ = [
    "Numbers",
    "TileShape",
    "choose_tile_config",
    "multicast_pays",
    "numbers",
    "rows_per_load",
    "tile_shapes",
]

TileShape = tuple[int, int]
"""Consumers, and keys of a block."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The entries of ``h200.toml``, which has their units and sources."""

    tile_throughput: Mapping[int, Mapping[int, Mapping[TileShape, float]]]
    tile_overhead_keys: Mapping[int, int]
    masked_block_n: int
    multicast_tiles_per_head: int
    multicast_causal_tiles_per_head: int
    multicast_waves: int
    tile_blocks: int
    combine_blocks: float
    split_blocks: float
    slower_with_full_waves: float
    least_gain: float
    section_bytes: int
    softcap_consumers: int
    softcap_block_elements: int


@functools.cache
def numbers() -> Numbers:
    """Return the numbers of the one chip that was measured; others are taken to be like it."""
    data = tomllib.loads(Path(__file__).with_name("h200.toml").read_text())
    multicast, split_kv, spills = data["multicast"], data["split_kv"], data["spills"]
    throughput, overhead = data["tile_throughput"], data["tile_overhead"]
    return Numbers(
        tile_throughput={size: _by_dim(throughput[f"bytes_{size}"]) for size in (1, 2)},
        tile_overhead_keys={count: overhead[f"query_buffers_{count}"] for count in (1, 2)},
        masked_block_n=data["masked_block_n"]["most"],
        multicast_tiles_per_head=multicast["tiles_per_head"],
        multicast_causal_tiles_per_head=multicast["causal_tiles_per_head"],
        multicast_waves=multicast["waves"],
        tile_blocks=split_kv["tile"],
        combine_blocks=split_kv["combine"],
        split_blocks=split_kv["split"],
        slower_with_full_waves=split_kv["slower_with_full_waves"],
        least_gain=split_kv["least_gain"],
        section_bytes=data["schedule"]["section_bytes"],
        softcap_consumers=spills["softcap_consumers"],
        softcap_block_elements=spills["softcap_block_elements"],
    )


def _by_dim(table: Mapping[str, Any]) -> dict[int, dict[TileShape, float]]:
    return {
        int(head_dim): {(consumers, block_n): share for consumers, block_n, share in rows}
        for head_dim, rows in table.items()
        if head_dim.isdecimal()
    }


def tile_shapes(head_dim: int, variant: Variant, element_bytes: int = 2) -> dict[TileShape, float]:
    """Return the tile shapes that a variant may have, and their throughput.

    With a paged KV cache only those of fewest loads.
    """
    columns, known = padded_dim(head_dim, element_bytes), numbers()
    throughput = next(
        of_dim for most, of_dim in known.tile_throughput[element_bytes].items() if columns <= most
    )
    if element_bytes == 1:  # none spills, and none is packed
        return dict(throughput)
    found = {
        (consumers, block_n): share
        for (consumers, block_n), share in throughput.items()
        if not ((variant.skips_blocks or variant.has_softcap) and block_n > known.masked_block_n)
        and not (variant.has_softcap and consumers > known.softcap_consumers)
        and not (variant.has_softcap and columns * block_n > known.softcap_block_elements)
    }
    most_rows = max(rows_per_load(variant.page_size, block_n) for _, block_n in found)
    return {
        (consumers, block_n): share
        for (consumers, block_n), share in found.items()
        if not variant.page_size or rows_per_load(variant.page_size, block_n) == most_rows
    }


def rows_per_load(page_size: int, block_n: int) -> int:
    """Return the rows of a block of keys that one load brings: those of one page, if paged.

    >>> [rows_per_load(size, 128) for size in (0, 16, 64, 96, 128, 256)]
    [128, 16, 64, 32, 128, 128]
    """
    return math.gcd(page_size, block_n)


def choose_tile_config(sizes: Sizes, sms: int, variant: Variant) -> TileConfig:
    """Return the tile config of least time: waves of tiles, times a tile's work over throughput.

    Args:
        sizes: Of the problem; of packed sequences, of a typical one.
        sms: How many tiles are worked on at once.
        variant: What the scores go through.
    """
    throughput = tile_shapes(sizes.head_dim, variant, sizes.element_bytes)

    def cost(shape: TileShape) -> float:
        config = _config_of(shape, sizes, variant)
        overhead = numbers().tile_overhead_keys[config.query_buffers]
        if variant.skips_blocks:
            # Tiles of all lengths fill the waves; half of the keys are seen, and the diagonal.
            waves: float = config.spans(sizes) / sms
            keys = (sizes.keys + config.positions + config.block_n) // 2
        else:
            waves = config.waves(sizes, sms)
            keys = -(-sizes.keys // config.block_n) * config.block_n
        return waves * config.rows * (keys + overhead) / throughput[shape]

    alone = _config_of(min(throughput, key=cost), sizes, variant)
    return replace(alone, cluster=2) if multicast_pays(sizes, alone, variant, sms) else alone


def _config_of(shape: TileShape, sizes: Sizes, variant: Variant) -> TileConfig:
    columns = padded_dim(sizes.head_dim, sizes.element_bytes)
    config = TileConfig(columns, *shape, element_bytes=sizes.element_bytes)
    packs_heads = variant.skips_blocks or sizes.queries < config.rows
    return replace(config, heads_per_tile=_heads_per_tile(sizes)) if packs_heads else config


def multicast_pays(sizes: Sizes, alone: TileConfig, variant: Variant, sms: int) -> bool:
    """Whether pairs of CTAs should share the loads of keys and values (TMA multicast).

    Each then asks L2 for half as much. But the two wait for each other, so it takes some waves; and
    both visit what either of them sees, so a head must have many tiles, and an odd number of them
    may not cost a wave.

    Args:
        sizes: Of the problem.
        alone: The tile config without sharing.
        variant: What the scores go through.
        sms: How many tiles are worked on at once.
    """
    if variant.is_packed or variant.has_left or alone.consumers == MAX_CONSUMERS:
        # Three consumers load less for their work, and leave the producer few registers.
        return False
    if alone.element_bytes == 1:  # no faster at any length (bench_attention.py --float8)
        return False
    known = numbers()
    waves = alone.waves(sizes, sms)
    tiles = -(-sizes.queries // alone.positions)
    enough = known.multicast_tiles_per_head
    if variant.has_right:
        enough = known.multicast_causal_tiles_per_head
    return (
        tiles >= enough
        and waves > known.multicast_waves
        and replace(alone, cluster=2).waves(sizes, sms) <= waves
    )


def _heads_per_tile(sizes: Sizes) -> int:
    """Return as many heads as share keys, in powers of two (GQA packing)."""
    heads = sizes.heads_per_kv_head
    return min(heads & -heads, GROUP_ROWS)
