"""The kernel grouped_gemm.cu: its blockings, its tiles and its builds."""

from __future__ import annotations

import functools
from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.ops import gemm
from tmaasync.ops._blocking import Blocking, output_chunk
from tmaasync.ops.gemm.blocking import FEW_ROWS
from tmaasync.ops.gemm.kernel import operand_tile
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map
from tmaasync.tile import TMATensorTile

__all__ = ["Tiles", "choose_blocking", "grouped_kernel", "grouped_tiles", "most_clusters"]


_MOST_CONSUMERS = 2


class Tiles(NamedTuple):
    """What the kernel takes."""

    rows: TMATensorTile
    matrices: TMATensorTile
    out: RaggedTensorMap


def choose_blocking(
    rows: int,
    groups: int,
    n: int,
    k: int,
    multiprocessors: int,
    *,
    on_lines: bool = True,
    b_is_k_major: bool = True,
) -> Blocking:
    """The blocking for groups of which only all their rows together are known.

    Up to `FEW_ROWS` rows a group on average, the product of the transposes is taken, with blocks
    as wide as a group of twice the average, since few groups have more.
    """
    average = -(-rows // groups)
    if average <= FEW_ROWS:
        width = min(2 * average, FEW_ROWS)
        # What is M there are the columns here; rows are K-major.
        return gemm.choose_few_columns(n, width, multiprocessors, b_is_k_major=True, count=groups)
    return gemm.choose_blocking(
        *(average, n, k, multiprocessors),
        on_lines=on_lines,
        b_is_k_major=b_is_k_major,
        count=groups,
        is_uneven=True,
        fits=_was_raced,
    )


def _was_raced(blocking: Blocking) -> bool:
    is_usual = not (blocking.ping_pong or blocking.side_by_side)
    return is_usual and blocking.consumers <= _MOST_CONSUMERS


def most_clusters(rows: int, groups: int, n: int, blocking: Blocking) -> int:
    """How many clusters cover the output, if every group has one row more than whole tiles."""
    if blocking.by_columns:
        return (rows // blocking.block_n + groups) * -(-n // blocking.block_m)
    return (rows // blocking.block_m + groups) * -(-n // blocking.block_n)


def grouped_tiles(
    a: ArrayView, b: ArrayView, c: ArrayView, blocking: Blocking, b_transposed: bool
) -> Tiles:
    """The tiles that the kernel takes, over arrays whose rows TMA can read.

    Args:
        a: [T, K].
        b: [groups, K, N]; or, ``b_transposed``, [groups, N, K].
        c: [T, N].
        blocking: How the output is cut.
        b_transposed: See ``b``.
    """
    if blocking.by_columns:
        rows = operand_tile(a, blocking.block_n, k_major=True, parts=1)
        # A group has seldom more rows than a block.
        matrices = operand_tile(
            b, blocking.block_m, k_major=b_transposed, parts=1, is_read_once=True
        )
    else:
        rows = operand_tile(a, blocking.block_m, k_major=True, parts=1)
        matrices = operand_tile(b, blocking.block_n, k_major=b_transposed, parts=blocking.cluster)
    chunk, swizzle = output_chunk(c.element, blocking)
    return Tiles(rows, matrices, create_ragged_tensor_map(c, chunk, swizzle=swizzle))


@functools.cache
def grouped_kernel(
    rows: str, matrices: str, out: str, b_transposed: bool, blocking: Blocking
) -> Kernel:
    """The kernel for three types of tile and a blocking."""
    if blocking.by_columns:
        types = {"ATile": matrices, "BTile": rows, "CTile": out}
        constants = gemm.gemm_constants(not b_transposed, True, blocking)
    else:
        types = {"ATile": rows, "BTile": matrices, "CTile": out}
        constants = gemm.gemm_constants(False, b_transposed, blocking)
    return Kernel("grouped_gemm.cu", types=types, constants=constants)
