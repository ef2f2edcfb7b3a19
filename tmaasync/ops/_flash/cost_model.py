"""The cost model of attention: a heuristic with measured coefficients."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync.ops._flash.config import (
    MAX_CONSUMERS,
    Sizes,
    TileConfig,
    Variant,
    packed_heads,
    padded_dim,
)

TileShape = tuple[int, int]
"""Consumers, and keys of a block."""

_LEAST_STAGES = 2


COEFFICIENTS = Path(__file__).with_name("h200.toml")
"""Numbers of an H200, the only chip that was fitted; others are taken to be like it."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The entries of ``h200.toml``, which documents their units and sources."""

    tile_throughput_16_bits: Mapping[tuple[int, int, int], float]
    tile_throughput_8_bits: Mapping[tuple[int, int, int], float]
    tile_overhead: Mapping[int, int]
    masked_block_n: int
    multicast_tiles: int
    multicast_causal_tiles: int
    multicast_waves: int
    tile_blocks: int
    combine_blocks: float
    split_blocks: float
    slower_with_full_waves: float
    least_gain: float
    section_bytes: int
    softcap_consumers: int
    softcap_block_elements: int
    transposes_rows: Mapping[int, int]


@functools.cache
def coefficients() -> Coefficients:
    entries = tomllib.loads(COEFFICIENTS.read_text(encoding="utf-8"))["attention"]
    return Coefficients(**{name: _value(entry) for name, entry in entries.items()})


def _value(entry: Mapping[str, Any]) -> Any:
    """Return a number, or a table keyed by all columns but the last."""
    value = entry["value"]
    if "columns" not in entry:
        return value
    return {row[0] if len(row) == 2 else tuple(row[:-1]): row[-1] for row in value}


def tile_shapes(
    head_dim: int, variant: Variant, element_bytes: int = 2, *, transposes_v: bool = False
) -> dict[TileShape, float]:
    """Return the legal tile shapes of a variant, with their throughput.

    With a paged KV cache only the shapes with the fewest loads are legal.
    """
    form: Any = {"element_bytes": element_bytes, "transposes_v": transposes_v}
    columns, known = padded_dim(head_dim, element_bytes), coefficients()
    is_16_bits = element_bytes == 2
    table = known.tile_throughput_16_bits if is_16_bits else known.tile_throughput_8_bits
    measured_dim = min(dim for dim, *_ in table if columns <= dim)
    found = {
        (consumers, block_n): throughput
        for (dim, consumers, block_n), throughput in table.items()
        if dim == measured_dim
        and not (is_16_bits and _spills(columns, consumers, block_n, variant))
        # FP8 tiles spill only in a producer with 32 registers that looks up pages.
        and (is_16_bits or not variant.page_size or consumers < MAX_CONSUMERS)
        and TileConfig(columns, consumers, block_n, 1, 1, **form).stages >= _LEAST_STAGES
    }
    if variant.page_size:
        rows = {shape: rows_per_load(variant.page_size, shape[1]) for shape in found}
        found = {shape: found[shape] for shape in found if rows[shape] == max(rows.values())}
    return found


def _spills(columns: int, consumers: int, block_n: int, variant: Variant) -> bool:
    """Return whether the mask or softcap makes the tile spill registers."""
    known = coefficients()
    if variant.skips_blocks and block_n > known.masked_block_n:
        return True
    return variant.has_softcap and (
        block_n > known.masked_block_n
        or consumers > known.softcap_consumers
        or columns * block_n > known.softcap_block_elements
    )


def rows_per_load(page_size: int, block_n: int) -> int:
    """Return the rows of a block of keys per load: at most one page of a paged KV cache.

    >>> [rows_per_load(size, 128) for size in (0, 16, 64, 96, 128, 256)]
    [128, 16, 64, 32, 128, 128]
    """
    return math.gcd(page_size, block_n)


def choose_tile_config(
    sizes: Sizes,
    sms: int,
    variant: Variant,
    shared_bytes: int = MAX_SHARED_BYTES,
    *,
    converts_fp8: bool = False,
) -> TileConfig:
    """Return the fastest tile config: time is waves of tiles, times a tile's work over throughput.

    For packed sequences ``sizes`` describes a typical one. ``shared_bytes``: of a CTA, at most.
    ``converts_fp8``: whether the chip's mma.sync multiplies FP8 as fp16.
    """
    transposes_v = _transposes_v(sizes, variant)
    throughput = tile_shapes(
        sizes.head_dim, variant, sizes.element_bytes, transposes_v=transposes_v
    )

    def cost(shape: TileShape) -> float:
        config = _config_of(shape, sizes, variant, transposes_v=transposes_v)
        overhead = coefficients().tile_overhead[config.query_buffers]
        if variant.skips_blocks:
            # Tiles of different lengths fill the waves; a tile visits half of the keys on average,
            # and the blocks on the diagonal.
            waves: float = config.spans(sizes) / sms
            keys = (sizes.keys + config.positions + config.block_n) // 2
        else:
            waves = config.waves(sizes, sms)
            keys = -(-sizes.keys // config.block_n) * config.block_n
        return waves * config.rows * (keys + overhead) / throughput[shape]

    fastest = min(throughput, key=cost)
    alone = _config_of(fastest, sizes, variant, transposes_v=transposes_v)
    chosen = replace(alone, cluster=2) if multicast_pays(sizes, alone, variant, sms) else alone
    if converts_fp8 and sizes.element_bytes == 1:
        chosen = _narrowed(chosen)
    return chosen.within(shared_bytes)


def _narrowed(config: TileConfig) -> TileConfig:
    """Return a tile that spills no registers where FP8 is multiplied as fp16 (ptxas 13.5)."""
    return replace(config, consumers=min(2, config.consumers), block_n=64)


def _transposes_v(sizes: Sizes, variant: Variant) -> bool:
    """Return whether attention.cu should transpose FP8 V itself, not attention_values.cu."""
    if sizes.element_bytes != 1:
        return False
    known, columns = coefficients().transposes_rows, padded_dim(sizes.head_dim, 1)
    most = known[min(dim for dim in known if columns <= dim)]
    return variant.is_packed or sizes.queries * sizes.heads_per_kv_head <= most


def _config_of(
    shape: TileShape, sizes: Sizes, variant: Variant, *, transposes_v: bool
) -> TileConfig:
    columns = padded_dim(sizes.head_dim, sizes.element_bytes)
    config = TileConfig(
        columns, *shape, element_bytes=sizes.element_bytes, transposes_v=transposes_v
    )
    if not variant.skips_blocks and sizes.queries >= config.rows:
        return config
    return replace(config, heads_per_tile=packed_heads(sizes))


def multicast_pays(sizes: Sizes, alone: TileConfig, variant: Variant, sms: int) -> bool:
    """Return whether pairs of CTAs should share the loads of keys and values (TMA multicast).

    Each CTA then requests half as much from L2. But paired CTAs wait for each other, so it pays
    only in several waves. Both visit the keys that either one needs, so a head must have many
    tiles, and an odd number of tiles may not cost a wave.
    """
    if variant.is_packed or variant.has_left or alone.consumers == MAX_CONSUMERS:
        # Three consumers load less per multiply-add, and leave the producer few registers.
        return False
    if alone.element_bytes == 1:  # not faster at any length (bench_attention.py --float8)
        return False
    known = coefficients()
    waves = alone.waves(sizes, sms)
    tiles = -(-sizes.queries // alone.positions)
    enough = known.multicast_causal_tiles if variant.has_right else known.multicast_tiles
    return (
        tiles >= enough
        and waves > known.multicast_waves
        and replace(alone, cluster=2).waves(sizes, sms) <= waves
    )
