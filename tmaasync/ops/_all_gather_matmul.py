"""ops.all_gather_matmul: an all-gather that overlaps the GEMM, with all_gather_gemm.cu."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, may_overlap
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import backend_of
from tmaasync.ops._allocation import fill, in_order, indexable
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._gemm.all_gather import (
    AllGatherGemmArguments,
    all_gather_config,
    all_gather_gemm_kernel,
    all_gather_tiles,
)
from tmaasync.ops._gemm.config import LINE_BYTES, Occupancy
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._layouts import Layout, Operand
from tmaasync.ops._ranks import (
    RankedLaunches,
    Ranks,
    RepeatedCalls,
    Shards,
    Workspace,
    array_on,
    push_tile,
    views_of,
)
from tmaasync.tile import Pointer, TMATensorTileArray

__all__ = ["all_gather_matmul"]

_REPEATED = RepeatedCalls()
_TYPES = ("bfloat16", "float16")
_OUTPUTS = (*_TYPES, "float32")


def all_gather_matmul(
    a: Sequence[Any], b: Sequence[Any], *, out: Any = None, streams: Any = None
) -> list[Any]:
    """Multiply the rows of all ranks by each rank's own matrix: ``concatenate(a) @ b[r]``.

    This is the first linear layer of a tensor-parallel MLP (column-parallel, with sequence
    parallelism). One kernel per rank does both: a warp of each CTA pushes the rank's rows into
    buffers of its peers by TMA, over NVLink, while the tensor cores multiply what has arrived, the
    rank's own rows first. It accumulates in fp32 and rounds once, like `matmul`.

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
    ArgumentError.raise_for(_unfit(ranks, left, right))
    total, k = sum(view.shape[0] for view in left), left[0].shape[1]
    shapes = [(total, view.shape[1]) for view in right]
    if out is None:
        new = zip(ranks.memories, left, shapes, strict=True)
        outputs = [array_on(memory, view, shape) for memory, view, shape in new]
    else:
        outputs = list(out) if views_of("out", out, len(left)) else []
    targets = views_of("out", outputs, len(left))
    ArgumentError.raise_for(_unfit_outputs(ranks, targets, shapes, (left, right)))
    if total == 0 or right[0].shape[1] == 0:
        return outputs
    if k == 0:
        _fill_with_zeros(targets, ranks)
        return outputs
    shards = Shards(tuple(view.shape[0] for view in left), k, left[0].element.itemsize)
    workspace = Workspace.of(ranks, left, shards, is_buffered=True)
    is_new = out is None
    layouts = [
        *map(Layout.of, (*left, *right)),
        *(Layout.of(view)._replace(owns_padding=is_new) for view in targets),
    ]
    operation = workspace.calls.operation(
        AllGatherMatmul, *layouts, workspace=workspace, shards=shards
    )
    done = operation.run(left, right, targets)
    if not is_new and not operation.needs_staging:
        frameworks = [view.framework for view in left]
        _REPEATED.remember((a, b, out), workspace, *done, frameworks)
    return outputs


def _fill_with_zeros(targets: Sequence[ArrayView], ranks: Ranks) -> None:
    for view, stream in zip(targets, ranks.streams, strict=True):
        with in_order(view.framework, view.device, stream or 0):
            fill(view, 0)


# --- checks -----------------------------------------------------------------------------------


def _unfit(
    ranks: Ranks, left: Sequence[ArrayView], right: Sequence[ArrayView]
) -> Iterator[Violation]:
    yield from ranks.misplaced("b", right, "a")
    both = (("a", left), ("b", right))
    names = [(f"{name}[{rank}]", view) for name, of in both for rank, view in enumerate(of)]
    for name, view in names:
        if view.ndim != 2:
            rule = "a rank has one matrix of each operand"
            yield Violation(name, f"of shape {view.shape}", rule, "Reshape it to two dimensions")
        if view.element.name not in _TYPES or view.element is not left[0].element:
            rule = f"all operands hold one type, {' or '.join(_TYPES)}; a[0] {left[0].element}"
            yield Violation(name, f"an array of {view.element}", rule, "Convert it with astype")
    if all(view.ndim == 2 for _, view in names):
        yield from _unequal(left, right)


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


def _unfit_outputs(
    ranks: Ranks,
    targets: Sequence[ArrayView],
    shapes: Sequence[tuple[int, int]],
    operands: Sequence[Sequence[ArrayView]],
) -> Iterator[Violation]:
    yield from ranks.misplaced("out", targets, "a")
    for rank, (view, shape) in enumerate(zip(targets, shapes, strict=True)):
        name = f"out[{rank}]"
        if view.shape != shape or view.element.name not in _OUTPUTS:
            rule = f"the output has shape {shape} and holds {', '.join(_OUTPUTS[:-1])} or float32"
            given = f"{view.element} of shape {view.shape}"
            yield Violation(name, given, rule, "Pass an array like that, or leave out=")
            continue
        if view.element is not targets[0].element:
            rule = f"out[0] holds {targets[0].element}, and all outputs hold one type"
            yield Violation(name, f"an array of {view.element}", rule, "Pass outputs of one type")
        if view.read_only:
            yield Violation(name, "a read-only array", "it is written", "Pass a writable array")
        yield from _overlaps(name, view, [views[rank] for views in operands])


def _overlaps(name: str, out: ArrayView, operands: Sequence[ArrayView]) -> Iterator[Violation]:
    if any(may_overlap(out, view) for view in operands):
        rule = "it overlaps an operand, and the order of tiles is not defined"
        yield Violation(name, f"at {out.address:#x}", rule, "Pass an array of its own")


# --- the operation ----------------------------------------------------------------------------


class _Rank(NamedTuple):
    """What one rank multiplies: layouts as the kernel reads and writes them."""

    a: Operand
    b: Operand
    out: Layout


class AllGatherMatmul:
    """The launches for operands and outputs of given layouts."""

    def __init__(self, *layouts: Layout, workspace: Workspace, shards: Shards) -> None:
        """Choose how each rank reads its operands; reject an output that TMA cannot store."""
        self._workspace, self._shards = workspace, shards
        self._launches: RankedLaunches | None = None
        count = len(workspace.ranks)
        left, right, outs = (layouts[start : start + count] for start in (0, count, 2 * count))
        ArgumentError.raise_for(_unstorable(outs))
        self._of = [
            _Rank(Operand.of_rows(a), Operand.of(b), out.in_stored_rows() or out)
            for a, b, out in zip(left, right, outs, strict=True)
        ]
        self.needs_staging = any(of.a.is_staged or of.b.is_staged for of in self._of)
        for view in {layout.device for layout in outs}:
            backend_of(view).require_wgmma("ops.all_gather_matmul")

    def run(
        self,
        left: Sequence[ArrayView],
        right: Sequence[ArrayView],
        targets: Sequence[ArrayView],
    ) -> tuple[RankedLaunches, list[tuple[int, ...]]]:
        """Launch; return the launches and their addresses."""
        ranks, shards = self._workspace.ranks, self._shards
        a = [self._reached(rank, self._of[rank].a, view) for rank, view in enumerate(left)]
        b = [self._reached(rank, self._of[rank].b, view) for rank, view in enumerate(right)]
        outs = [one.out.over(view) for one, view in zip(self._of, targets, strict=True)]
        # An empty shard is never read; its tiles lie over the buffer.
        own = [
            view if view.shape[0] else self._workspace.gathered(rank, 0, view, shards)
            for rank, view in enumerate(a)
        ]
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
            return self._launches, addresses

    def _reached(self, rank: int, operand: Operand, view: ArrayView) -> ArrayView:
        """Return the rows that the kernel reads, in a staging copy where TMA needs one."""
        memory, stream = self._workspace.ranks.memories[rank], self._workspace.ranks.streams[rank]
        backend_of(view.device).wait_for_producers((view,), stream)
        if not operand.is_staged or view.is_empty:
            return operand.rows.over(view)
        with in_order(view.framework, view.device, stream or 0):
            part = array_on(memory, view, operand.rows.shape)
            part[...] = indexable(view)
        return operand.rows.over(_arrays.view(part))

    def _prepare(
        self, rank: int, own: ArrayView, b: ArrayView, out: ArrayView
    ) -> tuple[Any, object]:
        workspace, shards, of = self._workspace, self._shards, self._of[rank]
        ranks, backend = workspace.ranks, backend_of(own.device)
        occupancy = Occupancy.of(backend)
        m, n, k = shards.total_rows, out.shape[1], shards.columns
        sharing = ranks.sharing(rank)
        config = all_gather_config(self._problem(rank, n), occupancy, shares_device=sharing > 1)
        halves = [workspace.gathered(rank, half, own, shards) for half in range(2)]
        tiles = all_gather_tiles(own, halves, b, out, config, of.b.transposed)
        pushed = push_tile(own)
        targets = TMATensorTileArray(
            [
                push_tile(shards.part(workspace.gathered(peer, half, own, shards), rank))
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
        # All CTAs are resident at once, since they wait for other ranks.
        size = config.cluster_size
        resident = max(1, occupancy.max_active_clusters(size) // sharing)
        pushers = -(-len(ranks) * shards.units(rank) // size)
        launch = kernel.prepare(
            min(resident, max(config.clusters(m, n), pushers)) * size,
            config.threads,
            arguments,
            cluster=size if size > 1 else None,
            device=ranks.memories[rank].ordinal,
            stream=ranks.streams[rank],
        )
        return launch, (tiles.gathered, targets)

    def _problem(self, rank: int, n: int) -> Problem:
        of, shards = self._of[rank], self._shards
        pitches = (of.a.rows.strides_bytes[-2], of.b.rows.strides_bytes[-2])
        return Problem(
            shards.total_rows,
            n,
            shards.columns,
            batches=1,
            operands=of.a.rows.element.name,
            output=of.out.element.name,
            layout="n" + ("t" if of.b.transposed else "n"),
            m_major=False,
            on_lines=all(pitch % LINE_BYTES == 0 for pitch in pitches),
        )


def _unstorable(outs: Sequence[Layout]) -> Iterator[Violation]:
    for rank, out in enumerate(outs):
        if out.in_stored_rows() is None:
            rule = "TMA stores rows of contiguous elements that start and end at multiples of 16"
            given = f"of shape {out.shape}, strides {out.strides_bytes} bytes"
            remedy = "Leave out=, or pass a contiguous array of a multiple of 8 columns"
            yield Violation(f"out[{rank}]", given, f"{rule} bytes", remedy)
