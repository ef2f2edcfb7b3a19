"""Tile configs of scaled_gemm_warps.cu, the block-scaled GEMM of chips without tensor memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tmaasync.ops._gemm.block_scales import ATOM_ROWS
from tmaasync.ops._gemm.config import Occupancy, TileConfig

_TILE_OVERHEAD = 32
"""Columns of a tile whose multiplication takes as long as its start and end: predicted."""


@dataclass(frozen=True)
class WarpScaledConfig(TileConfig):
    """CTA tiles of 64 rows per consumer, whose stages also hold scale factors.

    Attributes:
        factors: Scale factors of a row in a stage.
    """

    scaled_source: ClassVar = "scaled_gemm_warps.cu"
    factors: int = 0

    @property
    def stage_bytes(self) -> int:
        return super().stage_bytes + 2 * ATOM_ROWS * self.factors

    @property
    def store_bytes(self) -> int:
        """Half a line: whole lines leave no memory for a second stage of 128 x 128 NVFP4."""
        return 64

    @property
    def constants(self) -> dict[str, int]:
        return {
            "CONSUMERS": self.consumers,
            "BLOCK_N": self.block_n,
            "STAGES": self.stages,
            "GROUP_M": self.group_m,
        }


def warp_scaled_config(m: int, n: int, factors: int, occupancy: Occupancy) -> WarpScaledConfig:
    """Return the config with the least predicted time; none was measured."""

    def time(config: WarpScaledConfig) -> int:
        waves = -(-config.clusters(m, n) // occupancy.sms)
        return waves * config.block_m * (config.block_n + _TILE_OVERHEAD)

    candidates = (
        WarpScaledConfig(consumers, block_n, factors=factors)
        for consumers in (2, 1)
        for block_n in (128, 64)
    )
    return min(candidates, key=time)
