"""Matmuls of several GPUs with few rows: the collective and the GEMM, one after the other.

A tile of the kernels that overlap both has rows of one rank only. If those are few, the tiles of
all ranks load the other operand more often than a GEMM of all rows does. The speed of in turn over
overlapped, on two H200s (benchmarks/bench_few_rows.py, 2026-11-29; more GPUs were not measured):

* 64 rows of a rank: 1.11 to 2.11; 96 rows: 1.14 to 1.41;
* 128 rows: all-gather 1.10 to 1.43, reduce-scatter 0.95 to 0.98, all-reduce 0.96 to 1.07;
* 256 rows: 0.86, 0.95 and 0.96.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Launch, backend_of
from tmaasync.ops._all_gather import AllGather
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.epilogue import NO_EPILOGUE
from tmaasync.ops._gemm.tiles import GemmMatrices
from tmaasync.ops._layouts import Layout, Operand, padded_row_bytes
from tmaasync.ops._matmul import Matmul
from tmaasync.ops._operation import LaunchSequence
from tmaasync.ops._ranked_matmul import unstorable
from tmaasync.ops._ranks import RankedCall, RankedLaunches, Ranks, Shards, Workspace
from tmaasync.ops._reduce_ranks import ReduceRanks, resident_ctas

_Views = Sequence[ArrayView]
_Bound = Mapping[int, tuple[Launch, Sequence[int]]]  # by rank


def runs_in_turn(rows: int, few: int, ranks: Ranks, layouts: Sequence[Layout]) -> bool:
    """Return whether to launch the collective and the GEMM one after the other.

    Where ranks share a GPU, a collective that waits for another rank could keep that rank's GEMM
    from starting. Operands that need staging copies are left to the overlapping kernels.

    Args:
        rows: Of all ranks.
        few: The largest number of rows per rank.
        ranks: Devices and streams.
        layouts: Of all A, all B, and all outputs.
    """
    count = len(ranks)
    if rows > few * count or any(ranks.sharing(rank) > 1 for rank in range(count)):
        return False
    left, right, _ = _by_argument(layouts)
    each = zip(left, right, strict=True)
    return all(a.in_rows() and not Operand.of(b).is_staged for a, b in each)


class _Matmul(Matmul):
    """A GEMM without a workspace, whose address would change from call to call."""

    def _fits(self, config: TileConfig) -> bool:
        return not config.over_grid and super()._fits(config)

    def bound(self, a: ArrayView, b: ArrayView, out: ArrayView) -> tuple[Launch, Sequence[int]]:
        """Return the launch and its addresses."""
        if self._orientation.swap_ab:
            a, b = b, a
        launch = self.prepared(lambda: self._prepare(a, b, out, NO_EPILOGUE))
        return launch, GemmMatrices(a.address, b.address, out.address)


class _Matmuls:
    """The GEMMs of this process's ranks, for operands and outputs of given layouts."""

    def __init__(self, ranks: Ranks, *of: Sequence[Layout]) -> None:
        self._each = {rank: _Matmul(*(layouts[rank] for layouts in of)) for rank in ranks.local}

    def bound(self, *of: _Views) -> _Bound:
        """Return the launches and their addresses."""
        return {rank: one.bound(*(views[rank] for views in of)) for rank, one in self._each.items()}


class MatmulThenReduce:
    """gemm.cu and then reduce_ranks.cu, for operands and outputs of given layouts.

    A rank multiplies all rows into its buffer. When the second kernel ends, no other rank reads
    that buffer any more, so the next call may write it.
    """

    def __init__(
        self, *layouts: Layout, ranks: Ranks, rows: tuple[int, ...], all_reduce: bool
    ) -> None:
        """Reject an output that TMA cannot store; ``rows`` are those that each rank adds up."""
        left, right, outs = _by_argument(layouts)
        ArgumentError.raise_for(unstorable(outs))
        self._ranks, self._outs = ranks, [out.in_stored_rows() or out for out in outs]
        self._shape, self._element = (left[0].shape[0], right[0].shape[1]), outs[0].element
        parts = [_buffered(out, self._shape) for out in outs]
        self._matmuls = _Matmuls(ranks, left, right, parts)
        self._reduce = ReduceRanks(
            shards=Shards(rows, self._shape[1], self._element.itemsize),
            resident=resident_ctas(ranks, outs),
            all_reduce=all_reduce,
        )

    def run(self, left: _Views, right: _Views, targets: _Views) -> RankedCall:
        """Launch; return the call."""
        part_bytes = self._shape[0] * padded_row_bytes(self._shape[1], self._element)
        slots = self._reduce.resident
        workspace = Workspace.of(self._ranks, left, slots, part_bytes, halves=1)
        parts = _buffers(workspace, self._shape, self._element)
        outs = [out.over(view) for out, view in zip(self._outs, targets, strict=True)]
        _wait_for_producers(self._ranks, left, right, targets)
        with workspace.lock:
            reduces = _with_addresses(*self._reduce.prepared(workspace, parts, outs))
            call = _in_turn(workspace, self._matmuls.bound(left, right, parts), reduces)
        call.run()
        return call


class GatherThenMatmul:
    """all_gather.cu and then gemm.cu, for operands and outputs of given layouts.

    A rank gathers all rows in its buffer. Other ranks store into it when the rank has entered the
    next round, after its GEMM.
    """

    def __init__(self, *layouts: Layout, workspace: Workspace, shards: Shards) -> None:
        """Reject an output that TMA cannot store."""
        left, right, outs = _by_argument(layouts)
        ArgumentError.raise_for(unstorable(outs))
        self._workspace, self._left, self._element = workspace, left, left[0].element
        self._shape = shards.total_rows, shards.columns
        self._gather = AllGather(workspace=workspace, shards=shards)
        self._matmuls = _Matmuls(
            workspace.ranks, [_buffered(out, self._shape) for out in left], right, outs
        )

    def run(self, left: _Views, right: _Views, targets: _Views) -> RankedCall:
        """Launch; return the call."""
        workspace = self._workspace
        rows = [(a.in_rows() or a).over(view) for a, view in zip(self._left, left, strict=True)]
        gathered = _buffers(workspace, self._shape, self._element)
        _wait_for_producers(workspace.ranks, left, right, targets)
        with workspace.lock:
            gathers = _with_addresses(*self._gather.prepared(rows, gathered))
            call = _in_turn(workspace, gathers, self._matmuls.bound(gathered, right, targets))
        call.run()
        return call


def _by_argument(layouts: Sequence[Layout]) -> tuple[Sequence[Layout], ...]:
    """Return the layouts of all A, of all B, and of all outputs."""
    count = len(layouts) // 3
    return layouts[:count], layouts[count : 2 * count], layouts[2 * count :]


def _buffered(like: Layout, shape: tuple[int, int]) -> Layout:
    """Return the layout of a matrix in the buffer of a rank."""
    return like._replace(shape=shape, strides_bytes=(0, 0), owns_padding=True).padded()


def _buffers(workspace: Workspace, shape: tuple[int, int], element: Element) -> list[ArrayView]:
    return [workspace.matrix(rank, 0, shape, element) for rank in range(len(workspace.ranks))]


def _wait_for_producers(ranks: Ranks, *of: _Views) -> None:
    for *own, stream in zip(*of, ranks.streams, strict=True):
        backend_of(own[0].device).wait_for_producers(own, stream)


def _with_addresses(launches: RankedLaunches, addresses: Sequence[Sequence[int]]) -> _Bound:
    return {rank: (launch, addresses[rank]) for rank, launch in launches.launches.items()}


def _in_turn(workspace: Workspace, first: _Bound, second: _Bound) -> RankedCall:
    """Return the launches, one after the other."""
    launches = {
        rank: LaunchSequence(
            (first[rank][0], operator.itemgetter(0)), (second[rank][0], operator.itemgetter(1))
        )
        for rank in first
    }
    addresses = {rank: (first[rank][1], second[rank][1]) for rank in first}
    return RankedCall(workspace, RankedLaunches(launches, workspace.ranks.group), addresses)
