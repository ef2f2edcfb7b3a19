"""Tile configs that were raced for a use. About others the cost models know too little."""

from __future__ import annotations

from tmaasync.ops._gemm.coefficients import coefficients
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.legal_tiles import is_usual

_SPLIT_WIDTHS = (64, 128, 256)  # columns: benchmarks/bench_split.py --sweep, H200, 2026-11-21
_MAX_CONSUMERS = 2  # of split-K, and of groups

# The range of benchmarks/bench_split.py --sweep (H200, 2026-11-23) for split-K over the grid: one
# wave of CTAs that nearly fills the 132 SMs, and without split-K a K of this many blocks.
MIN_CTAS = 96
MIN_UNSPLIT_K_BLOCKS = 64


def split_k(config: TileConfig) -> bool:
    """Return whether the config was raced with split-K in a cluster."""
    is_known = config.block_n in _SPLIT_WIDTHS and config.consumers <= _MAX_CONSUMERS
    return is_known and not config.ping_pong


def over_grid(config: TileConfig) -> bool:
    """Return whether the config was raced in one wave, with and without split-K over the grid."""
    is_known = (config.consumers, config.block_n) in coefficients().grid.k_block
    return is_known and is_usual(config)


def grouped(config: TileConfig) -> bool:
    """Return whether the config was raced for a grouped GEMM."""
    is_alone = not (config.ping_pong or config.side_by_side)
    return is_alone and config.consumers <= _MAX_CONSUMERS
