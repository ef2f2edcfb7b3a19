"""Tile configs of attention_tensor_memory.cu, the attention of chips with tensor memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tmaasync._driver import DeviceLimits
from tmaasync._hardware import (
    CONVERTS_FP8,
    MAX_SHARED_BYTES,
    WARPGROUP_THREADS,
    WITH_TENSOR_MEMORY,
)
from tmaasync.ops._flash.config import (
    GROUP_ROWS,
    Sizes,
    TileConfig,
    Variant,
    packed_heads,
    padded_dim,
)
from tmaasync.ops._flash.cost_model import choose_tile_config

_LANES = 128  # of tensor memory: rows of a query tile
_ELEMENT_BYTES = 2
_OTHER_BYTES = 3 * 1024  # barriers, factors of rows, tasks
_MOST_STAGES = 8
_TWO_TILES_DIM = 128
"""The largest head dimension at which S and O of two query tiles fit in tensor memory."""
_TIME = {4: 4, 2: 3}
"""Relative time of a CTA with two query tiles in flight, and with one: predicted."""


@dataclass(frozen=True, slots=True)
class TensorMemoryConfig(TileConfig):
    """CTA tiles of one or two query tiles of 128 rows: 2 or 4 ``consumers`` of 64 rows."""

    source: ClassVar[str] = "attention_tensor_memory.cu"
    query_rows: ClassVar[int] = _LANES

    @property
    def combined(self) -> TileConfig:
        tile = (self.head_dim, self.consumers, self.block_n, self.heads_per_tile)
        splits = (self.cluster, self.stream_k, self.kv_splits, self.one_tile_each)
        return TileConfig(*tile, *splits)

    @property
    def threads(self) -> int:
        return WARPGROUP_THREADS * (2 + self.rows // _LANES)

    @property
    def stages(self) -> int:
        used = (self.rows + _LANES) * self.head_dim * _ELEMENT_BYTES + _OTHER_BYTES
        stage = self.block_n * self.head_dim * _ELEMENT_BYTES
        return min(_MOST_STAGES, (MAX_SHARED_BYTES - used) // stage)

    @property
    def constants(self) -> dict[str, bool | int]:
        return {
            "CONSUMERS": self.consumers,
            "BLOCK_N": self.block_n,
            "HEAD_DIM": self.head_dim,
            "STAGES": self.stages,
            "HEADS_PER_TILE": self.heads_per_tile,
            "CLUSTER": self.cluster,
            "SPLITS_KEYS": self.splits_keys,
            "ONE_TILE_EACH": self.one_tile_each,
        }


def config_on(limits: DeviceLimits, sizes: Sizes, variant: Variant) -> TileConfig:
    """Return a device's tile config: on tensor memory where it has one, for 16-bit elements."""
    chip = limits.compute_capability
    if sizes.element_bytes == _ELEMENT_BYTES and chip in WITH_TENSOR_MEMORY:
        return tensor_memory_config(sizes, limits.sms, variant)
    return choose_tile_config(
        *(sizes, limits.sms, variant, limits.shared_bytes), converts_fp8=chip in CONVERTS_FP8
    )


def tensor_memory_config(sizes: Sizes, sms: int, variant: Variant) -> TensorMemoryConfig:
    """Return the config with the least predicted time; none was measured."""
    columns = padded_dim(sizes.head_dim)
    if columns > _TWO_TILES_DIM:
        return _config_of(sizes, 2, variant)
    configs = [_config_of(sizes, consumers, variant) for consumers in _TIME]
    return min(configs, key=lambda one: one.waves(sizes, sms) * _TIME[one.consumers])


def _config_of(sizes: Sizes, consumers: int, variant: Variant) -> TensorMemoryConfig:
    columns = padded_dim(sizes.head_dim)
    block_n = 128 if columns <= _TWO_TILES_DIM else 64
    whole = not variant.skips_blocks and sizes.queries >= consumers * GROUP_ROWS
    heads = 1 if whole else packed_heads(sizes)
    return TensorMemoryConfig(columns, consumers, block_n, heads)
