"""ops.all_gather_matmul: an all-gather that overlaps the GEMM, with all_gather_gemm.cu."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import backend_of
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._few_rows import GatherThenMatmul, runs_in_turn
from tmaasync.ops._gemm.all_gather import (
    PUSH_ROWS,
    AllGatherGemmArguments,
    all_gather_config,
    all_gather_gemm_kernel,
    all_gather_tiles,
)
from tmaasync.ops._gemm.config import Occupancy
from tmaasync.ops._layouts import Layout, padded_row_bytes
from tmaasync.ops._ranked_matmul import (
    RankedOperands,
    fill_with_zeros,
    outputs_of,
    resident_launch,
    unfit_operands,
    unfit_outputs,
)
from tmaasync.ops._ranks import (
    RankedAddresses,
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
    ArgumentError.raise_for(unfit_operands(ranks, left, right, _unequal))
    total, k = sum(view.shape[0] for view in left), left[0].shape[1]
    shapes = [(total, view.shape[1]) for view in right]
    outputs = outputs_of(ranks, left, shapes, out)
    targets = views_of("out", outputs, len(left))
    ArgumentError.raise_for(unfit_outputs(ranks, targets, shapes, (left, right)))
    if total == 0 or right[0].shape[1] == 0:
        return outputs
    if k == 0:
        fill_with_zeros(targets, ranks)
        return outputs
    done = gather_and_multiply(ranks, left, right, targets, is_new=out is None)
    if out is not None and done is not None:
        _REPEATED.remember((a, b, out), *done, [view.framework for view in left])
    return outputs


def gather_and_multiply(
    ranks: Ranks,
    left: Sequence[ArrayView],
    right: Sequence[ArrayView],
    targets: Sequence[ArrayView],
    *,
    is_new: bool,
) -> tuple[Workspace, RankedLaunches, RankedAddresses] | None:
    """Launch; return the launches, unless a repeated call needs more than them.

    ``is_new``: the padding of the targets' rows may be written.
    """
    total, k = sum(view.shape[0] for view in left), left[0].shape[1]
    shards = Shards(tuple(view.shape[0] for view in left), k, left[0].element.itemsize)
    layouts = [
        *map(Layout.of, (*left, *right)),
        *(Layout.of(view)._replace(owns_padding=is_new) for view in targets),
    ]
    in_turn = runs_in_turn(total, _FEW_ROWS, ranks, layouts)
    gathered_bytes = total * padded_row_bytes(k, left[0].element)
    workspace = Workspace.of(
        ranks, left, shards.max_units, gathered_bytes, halves=1 if in_turn else 2
    )
    kind: Any = GatherThenMatmul if in_turn else AllGatherMatmul
    operation: GatherThenMatmul | AllGatherMatmul = workspace.calls.operation(
        kind, *layouts, workspace=workspace, shards=shards
    )
    done = operation.run(left, right, targets)
    return None if done is None else (workspace, *done)


# --- checks -----------------------------------------------------------------------------------


def _unequal(left: Sequence[ArrayView], right: Sequence[ArrayView]) -> Iterator[Violation]:
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

    def __init__(self, *layouts: Layout, workspace: Workspace, shards: Shards) -> None:
        """Choose how each rank reads its operands; reject an output that TMA cannot store."""
        self._workspace, self._shards = workspace, shards
        self._launches: RankedLaunches | None = None
        self.operands = RankedOperands(workspace.ranks, layouts)

    def run(
        self,
        left: Sequence[ArrayView],
        right: Sequence[ArrayView],
        targets: Sequence[ArrayView],
    ) -> tuple[RankedLaunches, list[tuple[int, ...]]] | None:
        """Launch; return the launches, unless operands are read from staging copies."""
        ranks = self._workspace.ranks
        a, b, outs = self.operands.reached(left, right, targets)
        # An empty shard is never read; its tiles lie over the buffer.
        own = [view if view.shape[0] else self._gathered(rank, 0) for rank, view in enumerate(a)]
        with self._workspace.lock:
            if self._launches is None:
                self._launches = RankedLaunches.prepared(
                    self._workspace,
                    lambda rank: self._prepare(rank, own[rank], b[rank], outs[rank]),
                )
            addresses: list[tuple[int, ...]] = [
                (mine.address, mine.address, matrix.address, out.address)
                for mine, matrix, out in zip(own, b, outs, strict=True)
            ]
            self._launches.run(addresses, ranks.streams)
        return None if self.operands.needs_staging else (self._launches, addresses)

    def _prepare(
        self, rank: int, own: ArrayView, b: ArrayView, out: ArrayView
    ) -> tuple[Any, object]:
        workspace, shards, of = self._workspace, self._shards, self.operands.of[rank]
        ranks, occupancy = workspace.ranks, Occupancy.of(backend_of(own.device))
        m, n, k = shards.total_rows, out.shape[1], shards.columns
        problem = self.operands.problem(m, n, k, [of])
        is_shared = ranks.sharing(rank) > 1
        config = all_gather_config(problem, occupancy, shares_device=is_shared)
        halves = [self._gathered(rank, half) for half in range(2)]
        tiles = all_gather_tiles(own, halves, b, out, config, of.b.transposed)
        pushed = push_tile(own, PUSH_ROWS)
        targets = TMATensorTileArray(
            [
                push_tile(shards.part(self._gathered(peer, half), rank), PUSH_ROWS)
                for half in range(2)
                for peer in range(len(ranks))
            ]
        )
        types = [tile.cuda_type for tile in (tiles.own, tiles.b, tiles.c)]
        kernel = all_gather_gemm_kernel(types, pushed.cuda_type, of.b.transposed, config)
        arguments = AllGatherGemmArguments(
            tiles.own, pushed, tiles.b, tiles.c, tiles.gathered, targets,
            workspace.signals[rank], shards.argument(workspace.slots),
            Pointer(workspace.rounds[rank]), m, n, k,
        )  # fmt: skip
        pushers = -(-len(ranks) * shards.units(rank) // config.cluster_size)
        clusters = max(config.clusters(m, n), pushers)
        launch = resident_launch(kernel, arguments, config, clusters, occupancy, ranks, rank)
        return launch, (tiles.gathered, targets)

    def _gathered(self, rank: int, half: int) -> ArrayView:
        """Return a half of a rank's buffer as the whole matrix."""
        shape = self._shards.total_rows, self._shards.columns
        held = self.operands.of[rank].a.rows.element
        return self._workspace.matrix(rank, half, shape, held)
