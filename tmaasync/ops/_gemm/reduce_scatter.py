"""Arguments and builds of gemm_reduce_scatter.cu and gemm_all_reduce.cu."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tmaasync.kernel import Kernel
from tmaasync.ops._gemm.config import SCALES_PER_LOAD, Occupancy, ScaledTileConfig, TileConfig
from tmaasync.ops._gemm.cost_model import ranked_config
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tiles import gemm_constants
from tmaasync.ops._operation import overridden, shipped_kernel
from tmaasync.tile import Pointer, TMATensorTileArray

MAX_AREA = 64 * 256
"""Elements of the output that a consumer accumulates: larger tiles spill in the epilogue, which
adds what other ranks sent (2,884 bytes for 128 x 192)."""


_EPOCH_BYTES = 128  # including alignment
_SHARD_ROWS = 64  # of wgmma
_STEP_WAVES = 2  # a part is announced a wave after it was sent
_MOST_STEPS = 4
_SHALLOW_K = 6144
_MANY_TILES = 4  # tiles of 128 x 128 per SM; fewer were not measured


class ReduceScatterArguments(NamedTuple):
    """The parameters of both kernels after the tiles of A, B, and the output or outputs."""

    sent: TMATensorTileArray
    received_0: Pointer
    received_1: Pointer
    signals: Any
    shards: bytes
    rounds: Pointer
    matrix_elements: int
    row_elements: int
    m: int
    k: int
    step_rows: int


def reduce_scatter_config(
    problem: Problem, occupancy: Occupancy, *, shares_device: bool
) -> TileConfig:
    """Return the tile config of a rank; ``problem.k`` is the largest K of all ranks.

    All CTAs end their tiles at about the same time, and then share the link to a peer. With few
    blocks of K this takes long next to the main loop, and ping-pong consumers overlap both. On two
    H200s (2026-11-28) with K = 4096 that is 1.07 to 1.14 times as fast as the cost model's choice;
    with K = 8192 it is slower, and pairs of cooperative tiles are 1.02 times as fast.
    """
    tiles = -(-problem.m // 128) * -(-problem.n // 128)
    if tiles < _MANY_TILES * occupancy.sms:
        config = ranked_config(problem, occupancy, shares_device=shares_device, max_area=MAX_AREA)
    elif problem.k <= _SHALLOW_K:
        config = TileConfig(2, 128, 1 if shares_device else 2, rows=128, ping_pong=True)
    else:
        config = TileConfig(2, 256, 1 if shares_device else 2)
    return overridden(config)


@dataclass(frozen=True)
class ScaledScatterConfig(ScaledTileConfig):
    """A tile config of scaled_gemm_reduce_scatter.cu, whose CTAs also hold epochs."""

    scaled_source: ClassVar = "scaled_gemm_reduce_scatter.cu"

    @property
    def a_scales(self) -> int:
        """The rows of a shard start anywhere, and a load at a multiple of 16 bytes."""
        return self.block_m + SCALES_PER_LOAD

    @property
    def barriers_bytes(self) -> int:
        return super().barriers_bytes + _EPOCH_BYTES


def all_reduce_shards(m: int, ranks: int) -> list[int]:
    """Return the rows that each rank adds up: whole wgmma rows, as many everywhere as possible."""
    whole, more = divmod(-(-m // _SHARD_ROWS), ranks)
    ends = itertools.accumulate(whole + (rank < more) for rank in range(ranks))
    starts = [0, *(min(end * _SHARD_ROWS, m) for end in ends)]
    return [end - start for start, end in itertools.pairwise(starts)]


def all_reduce_step_rows(rows: int, config: TileConfig, waves: float) -> int:
    """Return the rows of a shard that are sent while the rows before are added.

    The finished rows of the last step are pushed when no GEMM is left to hide it. A step of fewer
    waves would wait for the parts of the other ranks.

    Args:
        rows: Of the largest shard.
        config: The tile config.
        waves: Of all tiles.
    """
    steps = min(_MOST_STEPS, max(1, int(waves / _STEP_WAVES)))
    tiles = -(-rows // config.cluster_rows)
    return -(-tiles // steps) * config.cluster_rows


def slots_of(rows: int, columns: int, config: TileConfig) -> int:
    """Return the signals that a rank needs for a shard: one per consumer and tile."""
    return -(-rows // config.rows) * -(-columns // config.block_n)


def reduce_scatter_kernel(
    types: Sequence[str], b_transposed: bool, config: TileConfig, *, all_reduce: bool = False
) -> Kernel:
    """Return the kernel for these types of tiles: A, B and C."""
    named = dict(zip(("ATile", "BTile", "CTile"), types, strict=True))
    source = "gemm_all_reduce.cu" if all_reduce else "gemm_reduce_scatter.cu"
    return shipped_kernel(source, named, gemm_constants(False, b_transposed, config))
