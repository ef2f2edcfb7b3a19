"""How kernels that multiply tiles out of a ring cut their output: gemm.cu and its relatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync.modes import Swizzle
from tmaasync.tensormap import MAX_SHARED_BYTES
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = [
    "BLOCK_K_BYTES",
    "ROUNDS_TO_SHARE",
    "Blocking",
    "of_least_time",
    "output_chunk",
    "output_tile",
]

BLOCK_K_BYTES = 128
"""What a stage holds of K: 64 elements of 16 bits, 128 of 8, 32 of 32."""

ROUNDS_TO_SHARE = 2
"""From how many rounds on pairs of blocks share loads; before, they would wait for each other."""

_CHUNK_ROWS = 64  # what one instruction multiplies, and one store writes
_BARRIER_BYTES = 1024
_EPILOGUE_BUFFERS = 2
_ENOUGH_STAGES = 4
_LARGEST_OUTPUT = 4
_SUM_BYTES = 4
# For how many clusters of so many blocks 132 multiprocessors have room, of those that they make up:
# a cluster lies within one of their groups, and which group has how many differs from chip to chip.
_ROOM = {3: (39, 44), 4: (30, 33), 5: (20, 26), 6: (16, 22), 7: (14, 18), 8: (14, 16)}
_LEAST_COLUMNS = 8  # that a thread block stores, of a block by columns
_LEAST_CHUNK_BYTES = 32
_SWIZZLES = {128: Swizzle.B128, 64: Swizzle.B64, 32: Swizzle.B32}  # by the width of a store


@dataclass(frozen=True, slots=True)
class Blocking:
    """How the output is cut: blocks of ``rows * consumers`` rows by ``block_n`` columns.

    ``cluster`` blocks along M share the columns of B they load; ``group_m`` clusters along M are
    walked before the next column of blocks. With ``by_columns`` the output's columns are what is
    contiguous. A ``split`` block, where a kernel can do that, is multiplied by so many thread
    blocks of the cluster, each of them a part of K; there are ``cluster`` such blocks in it. With
    ``ping_pong`` each of two consumers has blocks of its own, of ``rows`` rows: one multiplies
    while the other stores. ``side_by_side`` the blocks of a cluster lie along N, where a kernel can
    do that, and share the rows of A.
    """

    consumers: int
    block_n: int
    cluster: int = 1
    group_m: int = 8
    rows: int = _CHUNK_ROWS
    by_columns: bool = False
    most_stages: int = 16
    split: int = 1
    ping_pong: bool = False
    side_by_side: bool = False

    @property
    def block_m(self) -> int:
        """Rows of a block."""
        return self.rows if self.ping_pong else self.rows * self.consumers

    @property
    def cluster_rows(self) -> int:
        """Rows of the blocks of a cluster."""
        return self.block_m * self.b_parts

    @property
    def a_parts(self) -> int:
        """Into how many parts a cluster cuts its loads of A; one where each block has its own."""
        return self.cluster if self.side_by_side else 1

    @property
    def b_parts(self) -> int:
        """The same of B."""
        return 1 if self.side_by_side else self.cluster

    @property
    def cluster_size(self) -> int:
        """Thread blocks of a cluster."""
        return self.cluster * self.split

    @property
    def stored_columns(self) -> int:
        """Columns that one thread block stores: of a split block a share, if that is wide enough.

        The kernel has the same rule, `count_output_slices`.
        """
        least = _LEAST_COLUMNS if self.by_columns else _LEAST_CHUNK_BYTES // 2
        shares = self.split
        while self.block_n % (shares * least) != 0:
            shares -= 1
        return self.block_n // shares

    @property
    def threads(self) -> int:
        """Of a block: a warpgroup for every consumer, and one that loads."""
        return 128 * (1 + self.consumers)

    @property
    def chunk_bytes(self) -> int:
        """Width of what one store writes: whole chunks make up a block.

        The widest that leaves memory for enough operand buffers, if there is one; by columns,
        whole lines.
        """
        if self.by_columns:
            return max(_SWIZZLES)
        widths = [width for width in _SWIZZLES if self.stored_columns % (width // 2) == 0]
        keeps_stages = (width for width in widths if self._stages(width) >= _ENOUGH_STAGES)
        return next(keeps_stages, widths[0])

    @property
    def stage_bytes(self) -> int:
        """What one buffer of the ring holds."""
        return (self.block_m + self.block_n) * BLOCK_K_BYTES

    @property
    def partials_bytes(self) -> int:
        """What a thread block of a split block gets from the others."""
        return (self.split - 1) * self.block_m * self.stored_columns * _SUM_BYTES

    @property
    def holds_partials(self) -> bool:
        """Whether the operand buffers hold that."""
        return self.partials_bytes <= self.stages * self.stage_bytes

    def holds_addend(self, itemsize: int) -> bool:
        """Whether an operand buffer holds a chunk like the output's for every consumer."""
        row_bytes = self.block_n * itemsize if self.by_columns else self.chunk_bytes
        return self.consumers * _CHUNK_ROWS * row_bytes <= self.stage_bytes

    def _epilogue_bytes(self, itemsize: int, chunk_bytes: int) -> int:
        """What the buffers hold from which the output is stored."""
        row_bytes = self.stored_columns * itemsize if self.by_columns else chunk_bytes
        return self.consumers * _EPILOGUE_BUFFERS * _CHUNK_ROWS * row_bytes

    @property
    def barriers_bytes(self) -> int:
        """What barriers take beside the stages, and their alignment."""
        return _BARRIER_BYTES

    def shared_bytes(self, itemsize: int) -> int:
        """What a block takes of shared memory: operands, output elements of this size, barriers."""
        operands = self.stages * self.stage_bytes
        return operands + self._epilogue_bytes(itemsize, self.chunk_bytes) + self.barriers_bytes

    @property
    def stages(self) -> int:
        """As many operand buffers as shared memory holds, whatever the output's type."""
        return self._stages(self.chunk_bytes)

    def _stages(self, chunk_bytes: int) -> int:
        stores = self._epilogue_bytes(_LARGEST_OUTPUT, chunk_bytes)
        room = MAX_SHARED_BYTES - self.barriers_bytes - stores
        return min(self.most_stages, room // self.stage_bytes)

    @property
    def constants(self) -> dict[str, int]:
        """What the kernels are compiled with."""
        return {
            "CONSUMERS": self.consumers,
            "ROWS": self.rows,
            "BLOCK_N": self.block_n,
            "STAGES": self.stages,
            "CLUSTER": self.cluster,
            "GROUP_M": self.group_m,
            "SPLIT_K": self.split,
            "PING_PONG": self.ping_pong,
            "SIDE_BY_SIDE": self.side_by_side,
            "C_IS_N_MAJOR": not self.by_columns,
        }

    def clusters_at_once(self, multiprocessors: int) -> int:
        """How many clusters run at once: each within a group of multiprocessors, some left over."""
        fit, of = _ROOM.get(self.cluster_size, (1, 1))
        return multiprocessors // self.cluster_size * fit // of

    def starts_early(self, clusters: int, at_once: int) -> bool:
        """Whether blocks start before those of the launch ahead have ended.

        Worth 2 to 15 % on an H200, but for a single round of blocks that memory bounds and that
        nearly fills the chip: those lose up to 15 %.
        """
        is_bound_by_memory = self.by_columns or self.block_m == _CHUNK_ROWS
        return not is_bound_by_memory or not at_once // 2 < clusters <= at_once

    def clusters(self, m: int, n: int) -> int:
        """How many clusters cover the output."""
        return -(-m // self.cluster_rows) * -(-n // (self.block_n * self.a_parts))


_Blocking = TypeVar("_Blocking", bound=Blocking)


def of_least_time(
    rates: Mapping[_Blocking, float], m: int, n: int, multiprocessors: int
) -> _Blocking:
    """The blocking of least time: rounds of blocks, times the work of a block over its rate.

    From `ROUNDS_TO_SHARE` on in pairs.

    Args:
        rates: Share of the fastest rate that blocks reach, each alone in its cluster.
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
    """

    def time(one: _Blocking) -> float:
        rounds = -(-one.clusters(m, n) // multiprocessors)
        return rounds * one.block_m * one.block_n / rates[one]

    best = min(rates, key=time)
    shares = best.clusters(m, n) > ROUNDS_TO_SHARE * multiprocessors
    return replace(best, cluster=2) if shares else best


def output_tile(out: ArrayView, blocking: Blocking) -> TMATensorTile:
    """The tile that the kernels store, of a matrix, or a batch, whose rows TMA can write."""
    shape, swizzle = output_chunk(out.element, blocking)
    return create_tma_tile(out, (*(1,) * (out.ndim - 2), *shape), swizzle=swizzle)


def output_chunk(element: Element, blocking: Blocking) -> tuple[tuple[int, int], Swizzle]:
    """What the kernels store at once of a matrix, and how it lies in shared memory."""
    if blocking.by_columns:
        return (blocking.stored_columns, _CHUNK_ROWS), Swizzle.B128
    columns = blocking.chunk_bytes // element.itemsize
    return (_CHUNK_ROWS, columns), _SWIZZLES[blocking.chunk_bytes]
