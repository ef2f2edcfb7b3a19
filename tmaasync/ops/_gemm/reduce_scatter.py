"""Tiles, arguments and build of gemm_reduce_scatter.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tmaasync.kernel import Kernel
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.cost_model import ranked_config
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tiles import gemm_constants
from tmaasync.ops._operation import overridden, shipped_kernel
from tmaasync.tile import Pointer, TMATensorTile, TMATensorTileArray

MAX_AREA = 64 * 256
"""Elements of the output that a consumer accumulates: larger tiles spill in the epilogue, which
adds what other ranks sent (2,884 bytes for 128 x 192)."""


_SHALLOW_K = 6144
_MANY_TILES = 4  # tiles of 128 x 128 per SM; fewer were not measured


class ReduceScatterArguments(NamedTuple):
    """The parameters of gemm_reduce_scatter.cu."""

    a: TMATensorTile
    b: TMATensorTile
    c: TMATensorTile
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


def slots_of(rows: int, columns: int, config: TileConfig) -> int:
    """Return the signals that a rank needs for a shard: one per consumer and tile."""
    return -(-rows // config.rows) * -(-columns // config.block_n)


def reduce_scatter_kernel(types: Sequence[str], b_transposed: bool, config: TileConfig) -> Kernel:
    """Return the kernel for these types of tiles: A, B and C."""
    named = dict(zip(("ATile", "BTile", "CTile"), types, strict=True))
    return shipped_kernel(
        "gemm_reduce_scatter.cu", named, gemm_constants(False, b_transposed, config)
    )
