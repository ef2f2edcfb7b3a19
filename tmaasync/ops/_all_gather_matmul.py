"""ops.all_gather_matmul: an all-gather that overlaps the GEMM, with all_gather_gemm.cu."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import Kernel, Launch, backend_of
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._few_rows import GatherThenMatmul, runs_in_turn
from tmaasync.ops._gemm.all_gather import (
    PUSH_ROWS,
    AllGatherGemmArguments,
    all_gather_config,
    all_gather_gemm_kernel,
    all_gather_tiles,
)
from tmaasync.ops._gemm.config import Occupancy, TileConfig
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
    RankedCall,
    RankedLaunches,
    Ranks,
    RepeatedCalls,
    Shards,
    Workspace,
    push_tile,
    views_of,
)
from tmaasync.tile import Pointer, TMATensorTileArray

__all__ = ["all_gather_matmul"]

_REPEATED = RepeatedCalls()
_FEW_ROWS = 128


def all_gather_matmul(
    a: Sequence[Any], b: Sequence[Any], *, out: Any = None, streams: Any = None
) -> list[Any]:
    """Multiply the rows of all ranks by each rank's own matrix: ``concatenate(a) @ b[r]``.

    This is the first linear layer of a tensor-parallel MLP (column-parallel, with sequence
    parallelism). One kernel per rank does both: a warp of each CTA pushes the rank's rows into
    buffers of its peers by TMA, over NVLink, while the tensor cores multiply what has arrived, the
    rank's own rows first. With 128 rows per rank or fewer, `all_gather` and a GEMM are faster, and
    run instead. It accumulates in fp32 and rounds once, like `matmul`.

    Each rank is a GPU, or a device of `emulate.devices`. The call returns after the launches;
    results are complete in the order of each rank's stream. Call `enable_peer_access` once before.
    The first call of a size class allocates two buffers of M times K on each device (rounded up to
    a power of two, and never freed) and waits for the GPUs; later calls do neither, and CUDA graphs
    can capture them. Calls on the same devices and streams must run in the same order on each.

    Args:
        a: One per rank, 1 to 8 (on GPUs 1 to 3): [M_r, K], bfloat16 or float16, on the rank's
            device. M_r may differ and may be 0. K is contiguous and rows start at multiples of 16
            bytes; otherwise they are read from a staging copy.
        b: One per rank: [K, N_r], of the type of ``a``. Either side may be contiguous (``w.T`` of a
            weight [N, K]), as in `matmul`; other layouts are read from a staging copy.
        out: The outputs, one per rank: [M, N_r], with M the sum of all M_r; bfloat16, float16 or
            float32. N is contiguous; rows start and end at multiples of 16 bytes. They overlap no
            operand. By default new arrays of the type of ``a``, with rows padded to 16 bytes.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU has no wgmma.
    """
    if out is not None and _REPEATED.run((a, b, out), streams):
        return list(out)
    left = views_of("a", a)
    right = views_of("b", b, len(left))
    ranks = Ranks.of("a", left, streams)
    ArgumentError.raise_for(unfit_operands(ranks, left, right, unequal_shards))
    outputs, targets = gathered_outputs(ranks, (left, right), out)
    done = gather_and_multiply(AllGatherMatmul, ranks, (left, right), targets, is_new=out is None)
    if out is not None and done is not None:
        _REPEATED.remember((a, b, out), *done, [view.framework for view in left])
    return outputs


_Views = Sequence[ArrayView]


def gathered_outputs(
    ranks: Ranks, operands: Sequence[_Views], out: Any, kind: str | None = None
) -> tuple[list[Any], list[ArrayView]]:
    """Return the caller's outputs, or new ones, and checked views.

    ``kind``: the type of new outputs; by default the operands'.
    """
    left, right = operands[:2]
    total = sum(view.shape[0] for view in left)
    shapes = [(total, view.shape[1]) for view in right]
    outputs = outputs_of(ranks, left, shapes, out, kind)
    targets = views_of("out", outputs, len(left))
    ArgumentError.raise_for(unfit_outputs(ranks, targets, shapes, operands))
    return outputs, targets


def gather_and_multiply(
    kind: type[AllGatherMatmul],
    ranks: Ranks,
    operands: Sequence[_Views],
    targets: _Views,
    *,
    is_new: bool,
) -> RankedCall | None:
    """Launch; return the launches, unless a repeated call needs more than them.

    Args:
        kind: The operation.
        ranks: Devices and streams.
        operands: A of all ranks, B, and what else the kernel reads.
        targets: The outputs.
        is_new: The padding of the outputs' rows may be written.
    """
    left, right = operands[:2]
    if targets[0].is_empty:
        return None
    if left[0].shape[1] == 0:
        fill_with_zeros(targets, ranks)
        return None
    total, k = sum(view.shape[0] for view in left), left[0].shape[1]
    shards = Shards(tuple(view.shape[0] for view in left), k, left[0].element.itemsize)
    layouts = [
        *(Layout.of(view) for views in operands for view in views),
        *(Layout.of(view)._replace(owns_padding=is_new) for view in targets),
    ]
    buffer_bytes = kind.buffer_bytes(shards, left[0].element)
    if kind is AllGatherMatmul and runs_in_turn(total, _FEW_ROWS, ranks, layouts):
        workspace = Workspace.of(ranks, left, shards.max_units, buffer_bytes, halves=1)
        in_turn = workspace.calls.operation(
            GatherThenMatmul, *layouts, workspace=workspace, shards=shards
        )
        return in_turn.run(left, right, targets)
    workspace = Workspace.of(ranks, left, kind.slots(shards), buffer_bytes)
    operation = workspace.calls.operation(kind, *layouts, workspace=workspace, shards=shards)
    done = operation.run(operands, targets)
    return None if done is None else RankedCall(workspace, *done)


# --- checks -----------------------------------------------------------------------------------


def unequal_shards(left: Sequence[ArrayView], right: Sequence[ArrayView]) -> Iterator[Violation]:
    k, width = left[0].shape[1], right[0].shape[1]
    for rank, (rows, matrix) in enumerate(zip(left, right, strict=True)):
        if rows.shape[1] != k:
            rule, remedy = f"a[0] has {k} columns, and so have all", "Pass shards of the same rows"
            yield Violation(f"a[{rank}]", f"of shape {rows.shape}", rule, remedy)
        if matrix.shape[0] != k:
            rule, remedy = f"a has {k} columns, so b has {k} rows", "For [N, K] pass b.T"
            yield Violation(f"b[{rank}]", f"of shape {matrix.shape}", rule, remedy)
        if (matrix.shape[1] == 0) != (width == 0):
            rule = "a rank without columns cannot take part, unless no rank has any"
            remedy = "Leave out the rank, or give it a column"
            yield Violation(f"b[{rank}]", f"of shape {matrix.shape}", rule, remedy)
    yield from extent_violations(
        {"M": sum(rows.shape[0] for rows in left), "K": k}
        | {f"N of b[{rank}]": matrix.shape[1] for rank, matrix in enumerate(right)}
    )


# --- the operation ----------------------------------------------------------------------------


class AllGatherMatmul:
    """The launches for operands and outputs of given layouts."""

    reads: ClassVar[Callable[..., tuple[Operand, ...]]] = staticmethod(unscaled_operands)

    def __init__(self, *layouts: Layout, workspace: Workspace, shards: Shards) -> None:
        """Choose how each rank reads its operands; reject an output that TMA cannot store."""
        self.workspace, self.shards = workspace, shards
        self._launches: RankedLaunches | None = None
        self.operands = RankedOperands(workspace.ranks, layouts, self.reads)

    @classmethod
    def slots(cls, shards: Shards) -> int:
        """Return the signals that a rank needs for a shard."""
        return shards.max_units

    @classmethod
    def buffer_bytes(cls, shards: Shards, held: Element) -> int:
        """Return the bytes of half of a buffer."""
        return shards.total_rows * padded_row_bytes(shards.columns, held)

    def run(
        self, operands: Sequence[_Views], targets: _Views
    ) -> tuple[RankedLaunches, list[tuple[int, ...]]] | None:
        """Launch; return the launches, unless operands are read from staging copies."""
        ranks = self.workspace.ranks
        read, outs = self.operands.reached(operands, targets)
        for rank, mine in enumerate(read):
            # An empty shard is never read; its tiles lie over the buffer.
            if mine[0].is_empty:
                mine[0] = self.gathered(rank, 0)
        with self.workspace.lock:
            if self._launches is None:
                self._launches = RankedLaunches.prepared(
                    self.workspace, lambda rank: self._prepare(rank, read[rank], outs[rank])
                )
            addresses = [self._addresses(mine, out) for mine, out in zip(read, outs, strict=True)]
            self._launches.run(addresses, ranks.streams)
        return None if self.operands.needs_staging else (self._launches, addresses)

    def _addresses(self, operands: _Views, out: ArrayView) -> tuple[int, ...]:
        """Return the first parameters of a rank's kernel."""
        own, b = operands
        return own.address, own.address, b.address, out.address

    def _prepare(self, rank: int, operands: _Views, out: ArrayView) -> tuple[Launch, object]:
        """Prepare the launch of a rank; return the memory that it reads, too."""
        workspace, of, (own, b) = self.workspace, self.operands.of[rank], operands
        m, n, k = self.shards.total_rows, out.shape[1], self.shards.columns
        problem = self.operands.problem(m, n, k, [of])
        is_shared = workspace.ranks.sharing(rank) > 1
        config = all_gather_config(problem, self.occupancy(rank), shares_device=is_shared)
        halves = [self.gathered(rank, half) for half in range(2)]
        tiles = all_gather_tiles(own, halves, b, out, config, of.b.transposed)
        pushed, targets = push_tile(own, PUSH_ROWS), self.targets(rank)
        types = [tile.cuda_type for tile in (tiles.own, tiles.b, tiles.c)]
        kernel = all_gather_gemm_kernel(types, pushed.cuda_type, of.b.transposed, config)
        arguments = AllGatherGemmArguments(
            tiles.own, pushed, tiles.b, tiles.c, tiles.gathered, targets,
            workspace.signals[rank], self.shards.argument(workspace.slots),
            Pointer(workspace.rounds[rank]), m, n, k,
        )  # fmt: skip
        return self.launch(rank, kernel, arguments, config), (tiles.gathered, targets)

    def launch(
        self, rank: int, kernel: Kernel, arguments: Sequence[Any], config: TileConfig
    ) -> Launch:
        """Prepare a launch with a CTA for each tile, and for each unit that the rank pushes."""
        ranks, out = self.workspace.ranks, self.operands.of[rank].out
        pushers = -(-len(ranks) * self.shards.units(rank) // config.cluster_size)
        clusters = max(config.clusters(*out.shape), pushers)
        occupancy = self.occupancy(rank)
        return resident_launch(kernel, arguments, config, clusters, occupancy, ranks, rank)

    def occupancy(self, rank: int) -> Occupancy:
        return Occupancy.of(backend_of(self.operands.of[rank].out.device))

    def targets(self, rank: int) -> TMATensorTileArray:
        """Return where a rank stores its rows: in the halves of all ranks' buffers."""
        return TMATensorTileArray(
            [
                push_tile(self.shards.part(self.gathered(peer, half), rank), PUSH_ROWS)
                for half in range(2)
                for peer in range(len(self.workspace.ranks))
            ]
        )

    def gathered(self, rank: int, half: int) -> ArrayView:
        """Return a half of a rank's buffer as the whole matrix."""
        shape = self.shards.total_rows, self.shards.columns
        held = self.operands.of[rank].a.rows.element
        return self.workspace.matrix(rank, half, shape, held)
