"""Tile config, tiles and build of all_gather_gemm.cu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.ops._gemm.config import Occupancy, ScaledTileConfig, TileConfig
from tmaasync.ops._gemm.cost_model import ranked_config
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tiles import gemm_constants, gemm_tiles, operand_tile, scaled_gemm_constants
from tmaasync.ops._operation import overridden, shipped_kernel
from tmaasync.ops._ranks import PUSH_ROW_BYTES
from tmaasync.tile import Pointer, TMATensorTile, TMATensorTileArray

PUSH_ROWS = 16
"""Rows of a push tile."""

_PUSH_STAGES = 2
"""Push tiles in flight per CTA. With 132 CTAs 1 MiB is in flight, which saturates the links of an
H200. Twice as much delays the loads of operands: over two H200s 16384^3 takes 6.83 ms instead of
6.59, and 8192 x 28672 x 8192 2.92 ms instead of 2.84. Half as much slows M = 512 from 65 to 73 us
(2026-11-28)."""

_PUSH_BYTES = _PUSH_STAGES * PUSH_ROWS * PUSH_ROW_BYTES + 1024  # barriers, alignment


@dataclass(frozen=True)
class AllGatherTileConfig(TileConfig):
    """A tile config of all_gather_gemm.cu, whose CTAs also hold the ring that they push from."""

    @property
    def barriers_bytes(self) -> int:
        """Bytes outside the stages: barriers, and the ring of push tiles with its own."""
        return super().barriers_bytes + _PUSH_BYTES


@dataclass(frozen=True)
class AllGatherScaledConfig(ScaledTileConfig):
    """The same for all_gather_scaled_gemm.cu."""

    scaled_source: ClassVar = "all_gather_scaled_gemm.cu"

    @property
    def barriers_bytes(self) -> int:
        return super().barriers_bytes + _PUSH_BYTES


def all_gather_config(
    problem: Problem, occupancy: Occupancy, *, shares_device: bool
) -> AllGatherTileConfig:
    """Return the tile config of the cost model of gemm.cu, without split-K."""
    chosen = ranked_config(problem, occupancy, shares_device=shares_device)
    config: AllGatherTileConfig = overridden(AllGatherTileConfig.of(chosen))
    return config


class AllGatherTiles(NamedTuple):
    own: TMATensorTile
    b: TMATensorTile
    c: TMATensorTile
    gathered: TMATensorTileArray


class AllGatherGemmArguments(NamedTuple):
    """The parameters of all_gather_gemm.cu."""

    own: TMATensorTile
    pushed: TMATensorTile
    b: TMATensorTile
    c: TMATensorTile
    gathered: TMATensorTileArray
    targets: TMATensorTileArray
    signals: Any
    shards: bytes
    rounds: Pointer
    m: int
    n: int
    k: int


class AllGatherScaledArguments(NamedTuple):
    """The parameters of all_gather_scaled_gemm.cu; steps are in scales."""

    own: TMATensorTile
    pushed: TMATensorTile
    b: TMATensorTile
    b_scales: TMATensorTile
    c: TMATensorTile
    own_scales: Pointer
    gathered: TMATensorTileArray
    gathered_scales: TMATensorTileArray
    targets: TMATensorTileArray
    buffers: bytes
    row_step: int
    block_step: int
    pitch: int
    signals: Any
    shards: bytes
    rounds: Pointer
    m: int
    n: int
    k: int


def all_gather_tiles(
    own: ArrayView,
    halves: Sequence[ArrayView],
    b: ArrayView,
    c: ArrayView,
    config: AllGatherTileConfig,
    b_transposed: bool,
) -> AllGatherTiles:
    """Return the tiles over matrices whose rows TMA can read.

    Args:
        own: The own shard, [M_r, K]; if it is empty, any matrix of these columns.
        halves: The two halves of the buffer, [M, K].
        b: [K, N], or [N, K] if ``b_transposed``.
        c: [M, N].
        config: The tile config.
        b_transposed: See ``b``.
    """
    both = [gemm_tiles(half, b, c, config, False, b_transposed) for half in halves]
    first = both[0]
    # As many boxes as over the whole matrix, so that both tiles have one type.
    parts = config.block_m // first.a.box_shape[0]
    own_tile = operand_tile(own, config.block_m, k_major=True, parts=parts)
    return AllGatherTiles(own_tile, first.b, first.c, TMATensorTileArray([one.a for one in both]))


def all_gather_scaled_kernel(
    types: Sequence[str],
    push_type: str,
    config: AllGatherScaledConfig,
    *,
    b_scales_transposed: bool,
) -> Kernel:
    """Return the kernel for these types of tiles: A, B, their scales and C, and the push tile."""
    names = ("ATile", "BTile", "AScaleTile", "BScaleTile", "CTile", "PushTile")
    named = dict(zip(names, (*types, push_type), strict=True))
    constants = scaled_gemm_constants(b_scales_transposed, config) | {"PUSH_STAGES": _PUSH_STAGES}
    return shipped_kernel(config.scaled_source, named, constants)


def all_gather_gemm_kernel(
    types: Sequence[str], push_type: str, b_transposed: bool, config: AllGatherTileConfig
) -> Kernel:
    """Return the kernel for these types of tiles: A, B and C, and the push tile."""
    named = dict(zip(("ATile", "BTile", "CTile", "PushTile"), (*types, push_type), strict=True))
    constants = {**gemm_constants(False, b_transposed, config), "PUSH_STAGES": _PUSH_STAGES}
    return shipped_kernel("all_gather_gemm.cu", named, constants)
