"""Tiles, arguments and build of gemm_reduce_scatter.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tmaasync.kernel import Kernel
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_constants
from tmaasync.ops._operation import shipped_kernel
from tmaasync.tile import Pointer, TMATensorTile, TMATensorTileArray

__all__ = ["MAX_AREA", "ReduceScatterArguments", "reduce_scatter_kernel", "slots_of"]


MAX_AREA = 64 * 256
"""Elements of the output that a consumer accumulates: larger tiles spill in the epilogue, which
adds what other ranks sent (2,884 bytes for 128 x 192)."""


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


def slots_of(rows: int, columns: int, config: TileConfig) -> int:
    """Return the signals that a rank needs for a shard: one per consumer and tile."""
    return -(-rows // config.rows) * -(-columns // config.block_n)


def reduce_scatter_kernel(types: Sequence[str], b_transposed: bool, config: TileConfig) -> Kernel:
    """Return the kernel for these types of tiles: A, B and C."""
    named = dict(zip(("ATile", "BTile", "CTile"), types, strict=True))
    return shipped_kernel(
        "gemm_reduce_scatter.cu", named, gemm_constants(False, b_transposed, config)
    )
