"""Tile configs of the block-scaled GEMMs of chips without tensor memory."""

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
    grouped_source: ClassVar = "scaled_grouped_gemm_warps.cu"
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


def warp_scaled_config(
    m: int, n: int, factors: int, occupancy: Occupancy, groups: int = 0
) -> WarpScaledConfig:
    """Return the config with the least predicted time; none was measured.

    ``groups`` have m rows on average, and tiles of the rows of an atom.
    """

    def time(config: WarpScaledConfig) -> int:
        rows = m + (config.block_m // 2 if groups else 0)
        waves = -(-config.clusters(rows, n) * max(groups, 1) // occupancy.sms)
        return waves * config.block_m * (config.block_n + _TILE_OVERHEAD)

    candidates = (
        WarpScaledConfig(consumers, block_n, factors=factors)
        for consumers in ((2,) if groups else (2, 1))
        for block_n in (128, 64)
    )
    return min(candidates, key=time)
