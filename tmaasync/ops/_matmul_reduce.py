"""ops.matmul_reduce_scatter and ops.matmul_all_reduce: GEMMs that overlap the sum over all ranks.

The kernels are gemm_reduce_scatter.cu and gemm_all_reduce.cu.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import Kernel, backend_of
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._few_rows import MatmulThenReduce, runs_in_turn
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.reduce_scatter import (
    ReduceScatterArguments,
    all_reduce_shards,
    all_reduce_step_rows,
    reduce_scatter_config,
    reduce_scatter_kernel,
    slots_of,
)
from tmaasync.ops._gemm.tiles import gemm_tiles, output_tile
from tmaasync.ops._layouts import Layout, Operand, padded_row_bytes
from tmaasync.ops._ranked_matmul import (
    RankedOperands,
    fill_with_zeros,
    outputs_of,
    resident_launch,
    unfit_operands,
    unfit_outputs,
    unscaled_operands,
)
from tmaasync.ops._ranks import (
    MAX_RANKS,
    RankedCall,
    RankedLaunches,
    Ranks,
    RepeatedCalls,
    Shards,
    Workspace,
    even_shards,
    views_of,
)
from tmaasync.tile import Pointer, TMATensorTile, TMATensorTileArray

_REPEATED_SCATTERS, _REPEATED_REDUCES = RepeatedCalls(), RepeatedCalls()


def matmul_reduce_scatter(
    a: Sequence[Any], b: Sequence[Any], *, out: Any = None, streams: Any = None
) -> list[Any]:
    """Multiply on every rank, and give each rank its rows of the sum: ``sum(a[r] @ b[r])``.

    This is the second linear layer of a tensor-parallel MLP (row-parallel, with sequence
    parallelism). One kernel per rank does both: its epilogue stores what other ranks own into their
    memory by TMA, over NVLink, while the tensor cores go on; the rank's own rows come last, and
    their epilogue adds what the other ranks sent. With 127 rows per rank or fewer, a GEMM of all
    rows and then `reduce_scatter` are faster, and run instead. It accumulates in fp32. What a rank
    sends is rounded to the output's type; the sum is in fp32, in a fixed order, and is rounded
    once, so equal calls give equal bits.

    Each rank is a GPU, or a device of `emulate.devices`. The call returns after the launches;
    results are complete in the order of each rank's stream. Call `enable_peer_access` once before.
    The first call of a size class allocates two buffers on each device, of P times the largest
    shard of the output (rounded up to a power of two, and never freed), and waits for the GPUs;
    later calls do neither, and CUDA graphs can capture them. Calls on the same devices and streams
    must run in the same order on each.

    Args:
        a: One per rank, 1 to 8: [M, K_r], bfloat16 or float16, on the rank's device. K_r may
            differ. K is contiguous and rows start at multiples of 16 bytes; otherwise they are read
            from a staging copy.
        b: One per rank: [K_r, N], of the type of ``a``. Either side may be contiguous (``w.T`` of a
            weight [N, K_r]), as in `matmul`; other layouts are read from a staging copy.
        out: The outputs, one per rank: [M_r, N], bfloat16, float16 or float32; the M_r add up to M,
            and may be 0. N is contiguous; rows start and end at multiples of 16 bytes. They overlap
            no operand. By default new arrays of the type of ``a``, with rows padded to 16 bytes and
            M divided evenly: the first M % P ranks have one row more.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU has no wgmma.
    """
    if out is not None and _REPEATED_SCATTERS.run((a, b, out), streams):
        return list(out)
    left, right, ranks = _operands(a, b, streams)
    outputs, targets = scattered_outputs(ranks, (left, right), out)
    done = multiply_and_reduce(
        MatmulReduceScatter, ranks, (left, right), targets, is_new=out is None
    )
    if done is not None and out is not None:
        _REPEATED_SCATTERS.remember((a, b, out), *done, [view.framework for view in left])
    return outputs


def matmul_all_reduce(
    a: Sequence[Any], b: Sequence[Any], *, out: Any = None, streams: Any = None
) -> list[Any]:
    """Multiply on every rank, and give each rank the whole sum: ``sum(a[r] @ b[r])``.

    This is the second linear layer of a tensor-parallel MLP (row-parallel) whose activations all
    ranks hold. One kernel per rank does what `matmul_reduce_scatter` does for shards of whole
    blocks of 64 rows; the rank that adds up a shard stores the finished rows into the outputs of
    all ranks by TMA. With 128 rows per rank or fewer, a GEMM and then `all_reduce` run instead. All
    ranks receive the same bits, and equal calls give equal bits.

    Each rank is a GPU, or a device of `emulate.devices`. The call returns after the launches;
    results are complete in the order of each rank's stream. Call `enable_peer_access` once before.
    The first call of a size class allocates two buffers on each device, of P times the largest
    shard (rounded up to a power of two, and never freed), and waits for the GPUs; later calls do
    neither, and CUDA graphs can capture them. Calls on the same devices and streams must run in the
    same order on each.

    Args:
        a: One per rank, 1 to 8: [M, K_r], as in `matmul_reduce_scatter`.
        b: One per rank: [K_r, N], as in `matmul_reduce_scatter`.
        out: The outputs, one per rank: [M, N], bfloat16, float16 or float32. N is contiguous; rows
            start and end at multiples of 16 bytes. They overlap no operand. By default new arrays
            of the type of ``a``, with rows padded to 16 bytes.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU has no wgmma.
    """
    if out is not None and _REPEATED_REDUCES.run((a, b, out), streams):
        return list(out)
    left, right, ranks = _operands(a, b, streams)
    shapes = [(left[0].shape[0], right[0].shape[1])] * len(ranks)
    outputs = outputs_of(ranks, left, shapes, out)
    targets = views_of("out", outputs, len(left))
    ArgumentError.raise_for(unfit_outputs(ranks, targets, shapes, (left, right)))
    done = multiply_and_reduce(MatmulAllReduce, ranks, (left, right), targets, is_new=out is None)
    if done is not None and out is not None:
        _REPEATED_REDUCES.remember((a, b, out), *done, [view.framework for view in left])
    return outputs


def scattered_outputs(
    ranks: Ranks, operands: Sequence[_Views], out: Any, kind: str | None = None
) -> tuple[list[Any], list[ArrayView]]:
    """Return the caller's outputs, or new ones that divide the rows evenly, and checked views.

    ``kind``: the type of new outputs; by default the operands'.
    """
    left, right = operands[:2]
    m, n = left[0].shape[0], right[0].shape[1]
    even = [(rows, n) for rows in even_shards(m, len(ranks))]
    outputs = outputs_of(ranks, left, even, out, kind)
    targets = views_of("out", outputs, len(left))
    ArgumentError.raise_for(_unscattered(targets, m))
    shapes = [(view.shape[0], n) for view in targets]
    ArgumentError.raise_for(unfit_outputs(ranks, targets, shapes, operands))
    return outputs, targets


_Views = Sequence[ArrayView]


def _operands(
    a: Sequence[Any], b: Sequence[Any], streams: Any
) -> tuple[list[ArrayView], list[ArrayView], Ranks]:
    """Return checked views of the operands, and their ranks."""
    left = views_of("a", a)
    right = views_of("b", b, len(left))
    ranks = Ranks.of("a", left, streams)
    ArgumentError.raise_for(unfit_operands(ranks, left, right, unequal_parts))
    return left, right, ranks


def multiply_and_reduce(
    kind: type[MatmulReduceScatter],
    ranks: Ranks,
    operands: Sequence[_Views],
    targets: _Views,
    *,
    is_new: bool,
) -> RankedCall | None:
    """Compute the targets; return the launches, unless a repeated call needs more than them.

    ``operands``: A of all ranks, B, and what else the kernel reads.
    """
    left, right = operands[:2]
    if left[0].shape[0] == 0 or right[0].shape[1] == 0:
        return None
    if left[0].shape[1] == 0:
        fill_with_zeros(targets, ranks)
        return None
    layouts = [
        *(Layout.of(view) for views in operands for view in views),
        *(Layout.of(view)._replace(owns_padding=is_new) for view in targets),
    ]
    m = left[0].shape[0]
    if runs_in_turn(m, kind.few_rows, ranks, layouts):
        shards = [view.shape[0] for view in targets]
        rows = even_shards(m, len(ranks)) if kind.all_reduce else shards
        in_turn = ranks.calls.operation(
            MatmulThenReduce, *layouts, ranks=ranks, rows=tuple(rows), all_reduce=kind.all_reduce
        )
        return in_turn.run(left, right, targets)
    operation = ranks.calls.operation(kind, *layouts, ranks=ranks)
    done = operation.run(operands, targets)
    return None if operation.operands.needs_staging else done


# --- checks -----------------------------------------------------------------------------------


def unequal_parts(left: Sequence[ArrayView], right: Sequence[ArrayView]) -> Iterator[Violation]:
    m, n, has_depth = left[0].shape[0], right[0].shape[1], left[0].shape[1] > 0
    for rank, (rows, matrix) in enumerate(zip(left, right, strict=True)):
        depth = rows.shape[1]
        if rows.shape[0] != m:
            rule, remedy = f"a[0] has {m} rows, and so have all", "Pass the columns of one matrix"
            yield Violation(f"a[{rank}]", f"of shape {rows.shape}", rule, remedy)
        if matrix.shape != (depth, n):
            rule, remedy = f"a[{rank}] has {depth} columns and b[0] {n}", "For [N, K] pass b.T"
            yield Violation(f"b[{rank}]", f"of shape {matrix.shape}", rule, remedy)
        if (depth > 0) != has_depth:
            rule = "a rank whose K is 0 cannot take part, unless it is 0 for all"
            remedy = "Leave out the rank, or give it a column"
            yield Violation(f"a[{rank}]", f"of shape {rows.shape}", rule, remedy)
    depths = {f"K of a[{rank}]": rows.shape[1] for rank, rows in enumerate(left)}
    yield from extent_violations({"M": m, "N": n} | depths)


def _unscattered(targets: Sequence[ArrayView], m: int) -> Iterator[Violation]:
    for rank, view in enumerate(targets):
        if view.ndim != 2:
            rule = "a rank has one matrix of the output"
            yield Violation(f"out[{rank}]", f"of shape {view.shape}", rule, "Reshape it")
            return
    found = [view.shape[0] for view in targets]
    if sum(found) != m:
        rule = f"they divide the {m} rows of a"
        yield Violation("out", f"of {found} rows", rule, "Pass shards of as many rows in all")


# --- the operation ----------------------------------------------------------------------------


class MatmulReduceScatter:
    """The launches for operands and outputs of given layouts."""

    name: ClassVar[str] = "ops.matmul_reduce_scatter"
    all_reduce: ClassVar[bool] = False
    few_rows: ClassVar[int] = 127
    reads: ClassVar[Callable[..., tuple[Operand, ...]]] = staticmethod(unscaled_operands)

    def __init__(self, *layouts: Layout, ranks: Ranks) -> None:
        """Choose the tile config, the same one on all ranks."""
        count = len(ranks)
        self.operands = RankedOperands(ranks, layouts, self.reads)
        self._launches: RankedLaunches | None = None
        self._depths = [layout.shape[1] for layout in layouts[:count]]
        (self._m, _), (_, n) = layouts[0].shape, layouts[count].shape
        self._element = self.operands.of[0].out.element
        self._shards = Shards(tuple(self._shard_rows()), n, self._element.itemsize)
        self._occupancy = Occupancy.of(backend_of(layouts[0].device))
        is_shared = any(ranks.sharing(rank) > 1 for rank in range(count))
        self._config = self._chosen(shares_device=is_shared)
        self._matrix_bytes = max(self._shards.rows) * padded_row_bytes(n, self._element)

    def _shard_rows(self) -> list[int]:
        return [one.out.shape[0] for one in self.operands.of]

    def _chosen(self, *, shares_device: bool) -> TileConfig:
        problem = self.operands.problem(
            self._m, self._shards.columns, max(self._depths), self.operands.of
        )
        return reduce_scatter_config(problem, self._occupancy, shares_device=shares_device)

    def _built(
        self, rank: int, operands: _Views, c: ArrayView
    ) -> tuple[Kernel, Sequence[TMATensorTile]]:
        """Return the kernel of a rank, and the tiles of its operands."""
        b_transposed = self.operands.of[rank].b.transposed
        a, b = operands
        tiles = gemm_tiles(a, b, c, self._config, False, b_transposed)
        types = [tile.cuda_type for tile in tiles]
        kernel = reduce_scatter_kernel(
            types, b_transposed, self._config, all_reduce=self.all_reduce
        )
        return kernel, tiles[:2]

    def _slots(self) -> int:
        """Return the signals that a rank needs for a shard."""
        return slots_of(max(self._shards.rows), self._shards.columns, self._config)

    def _stored(self, workspace: Workspace, rank: int, outs: _Views) -> list[ArrayView]:
        """Return the matrices that a rank stores, with the rows of its shard."""
        # An empty shard is never stored; its tile lies over the buffer.
        own = outs[rank]
        return [own if own.shape[0] else self._received(workspace, rank, 0, 0)]

    def _step_rows(self) -> int:
        return max(self._shards.rows)

    @property
    def _clusters(self) -> int:
        return sum(self._config.clusters(rows, self._shards.columns) for rows in self._shards.rows)

    def run(self, operands: Sequence[_Views], targets: _Views) -> RankedCall:
        """Launch; return the call."""
        ranks = self.operands.ranks
        workspace = Workspace.of(ranks, operands[0], self._slots(), len(ranks) * self._matrix_bytes)
        read, outs = self.operands.reached(operands, targets)
        stored = [self._stored(workspace, rank, outs) for rank in range(len(ranks))]
        with workspace.lock:
            if self._launches is None:
                self._launches = RankedLaunches.prepared(
                    workspace,
                    lambda rank: self._prepare(workspace, rank, read[rank], stored[rank]),
                )
            addresses = [
                tuple(view.address for view in (*mine, *own))
                for mine, own in zip(read, stored, strict=True)
            ]
            self._launches.run(addresses, ranks.streams)
        return RankedCall(workspace, self._launches, addresses)

    def _received(self, workspace: Workspace, rank: int, half: int, source: int) -> ArrayView:
        """Return the matrix in a rank's buffer that another rank stores."""
        shape = max(self._shards.rows[rank], 1), self._shards.columns
        offset = source * self._matrix_bytes
        return workspace.matrix(rank, half, shape, self._element, offset)

    def _prepare(
        self, workspace: Workspace, rank: int, operands: _Views, stored: _Views
    ) -> tuple[Any, object]:
        ranks, shards, config = self.operands.ranks, self._shards, self._config
        kernel, tiles = self._built(rank, operands, stored[0])
        outputs = [output_tile(view, config) for view in stored]
        sent = TMATensorTileArray(
            [
                output_tile(self._received(workspace, peer, half, rank), config)
                for half in range(2)
                for peer in range(len(ranks))
            ]
        )
        itemsize = self._element.itemsize
        pitch = padded_row_bytes(shards.columns, self._element) // itemsize
        received = len(ranks) * max(shards.rows), pitch  # of all ranks
        halves = [workspace.matrix(rank, half, received, self._element) for half in range(2)]
        given = ReduceScatterArguments(
            sent, Pointer(halves[0]), Pointer(halves[1]), workspace.signals[rank],
            shards.argument(workspace.slots), Pointer(workspace.rounds[rank]),
            self._matrix_bytes // itemsize, pitch, self._m, self._depths[rank], self._step_rows(),
        )  # fmt: skip
        arguments = *tiles, *outputs, *given
        launch = resident_launch(
            kernel, arguments, config, self._clusters, self._occupancy, ranks, rank
        )
        return launch, sent


class MatmulAllReduce(MatmulReduceScatter):
    """The same, with gemm_all_reduce.cu: finished rows go to all ranks."""

    name: ClassVar[str] = "ops.matmul_all_reduce"
    all_reduce: ClassVar[bool] = True
    few_rows: ClassVar[int] = 128

    def _shard_rows(self) -> list[int]:
        return all_reduce_shards(self._m, len(self.operands.ranks))

    def _slots(self) -> int:
        return 2 * super()._slots()  # for parts, and for finished tiles

    def _stored(self, workspace: Workspace, rank: int, outs: _Views) -> list[ArrayView]:
        del workspace
        stored = [self._shards.part(view, rank) for view in outs]
        return [*stored, *itertools.repeat(stored[-1], MAX_RANKS - len(stored))]

    def _step_rows(self) -> int:
        config = self._config
        resident = self._occupancy.max_active_clusters(config.cluster_size)
        waves = self._clusters / resident
        return all_reduce_step_rows(max(self._shards.rows), config, waves)
