"""ops.all_gather: the rows of all ranks on every rank, with all_gather.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import backend_of
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._layouts import Layout, refuse_overlap
from tmaasync.ops._operation import shipped_kernel
from tmaasync.ops._ranks import (
    MAX_RANKS,
    RankedCall,
    RankedLaunches,
    Ranks,
    RepeatedCalls,
    Shards,
    Workspace,
    as_rows,
    new_rows,
    push_tile,
    unmovable,
    views_of,
)
from tmaasync.tile import Pointer

__all__ = ["all_gather"]

_PUSH_ROWS = 32
_STAGES = 8
"""Push tiles in flight per CTA: 64 KiB. 16 CTAs with 128 KiB each saturate a link of an H200
(benchmarks/bench_peers.py, 2026-11-23)."""

_THREADS = 32
_REPEATED = RepeatedCalls()


def all_gather(arrays: Sequence[Any], *, out: Any = None, streams: Any = None) -> list[Any]:
    """Concatenate the arrays of all ranks along the first dimension, on every rank.

    Each rank is a GPU, or a device of `emulate.devices`. Every rank stores its rows into the output
    of every rank by TMA, over NVLink. The call returns after the launches; results are complete in
    the order of each rank's stream. Call `enable_peer_access` once before. The first call with
    arrays of a new size class allocates and waits for the GPUs; later calls do neither, and CUDA
    graphs can capture them.

    Args:
        arrays: One per rank, 1 to 8: [M_r, ...], on the rank's device. M_r may differ and may be 0;
            all other dimensions and the type are equal. The rows may be any distance apart; the
            elements of a row are contiguous, and their bytes a multiple of 16.
        out: The outputs, one per rank, [M, ...], with M the sum of all M_r; contiguous rows as
            above. By default new arrays.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU is older than sm_90.
    """
    if out is not None and _REPEATED.run((arrays, out), streams):
        return list(out)
    views = views_of("arrays", arrays)
    ranks = Ranks.of("arrays", views, streams)
    ArgumentError.raise_for(_unlike(views))
    shape = (sum(view.shape[0] for view in views), *views[0].shape[1:])
    outputs = list(out) if out is not None and views_of("out", out, len(views)) else None
    if outputs is None:
        pairs = zip(ranks.memories, views, strict=True)
        outputs = [new_rows(memory, view, shape) for memory, view in pairs]
    targets = views_of("out", outputs, len(views))
    ArgumentError.raise_for(_unfit(ranks, views, targets, shape))
    if 0 in shape:
        return outputs
    for rank, target in enumerate(targets):
        refuse_overlap(f"out[{rank}]", target, {f"arrays[{rank}]": views[rank]})
    rows, full = [as_rows(view) for view in views], [as_rows(view) for view in targets]
    done = gather_rows(ranks, rows, full)
    if out is not None:
        _REPEATED.remember((arrays, out), *done, [view.framework for view in views])
    return outputs


def gather_rows(ranks: Ranks, rows: Sequence[ArrayView], full: Sequence[ArrayView]) -> RankedCall:
    """Launch; return the call."""
    call = prepared_gather(ranks, rows, full)
    call.run()
    return call


def prepared_gather(
    ranks: Ranks,
    rows: Sequence[ArrayView],
    full: Sequence[ArrayView],
    *,
    is_reversed: bool = False,
) -> RankedCall:
    """Return the call; with ``is_reversed`` the last rank's rows come first."""
    counts = tuple(view.shape[0] for view in rows)
    shards = Shards(counts, full[0].shape[1], full[0].element.itemsize, is_reversed)
    workspace = Workspace.of(ranks, full, shards.max_units)
    layouts = map(Layout.of, (*rows, *full))
    operation = workspace.calls.operation(AllGather, *layouts, workspace=workspace, shards=shards)
    for own, target, stream in zip(rows, full, ranks.streams, strict=True):
        backend_of(own.device).wait_for_producers((own, target), stream)
    with workspace.lock:
        return RankedCall(workspace, *operation.prepared(rows, full))


# --- checks -----------------------------------------------------------------------------------


def _unlike(views: Sequence[ArrayView]) -> Iterator[Violation]:
    first = views[0]
    for rank, view in enumerate(views):
        name = f"arrays[{rank}]"
        if view.ndim < 2:
            remedy = "Reshape it, for example to (n, 8) of float16"
            yield Violation(name, f"of shape {view.shape}", "it has two dimensions or more", remedy)
        elif view.shape[1:] != first.shape[1:] or view.element is not first.element:
            rule = f"arrays[0] holds {first.element} of shape {first.shape}; only rows may differ"
            remedy = "Pass arrays of one type, equal in all but the first dimension"
            yield Violation(name, f"{view.element} of shape {view.shape}", rule, remedy)


def _unfit(
    ranks: Ranks, views: Sequence[ArrayView], targets: Sequence[ArrayView], shape: tuple[int, ...]
) -> Iterator[Violation]:
    yield from ranks.misplaced("out", targets, "arrays")
    yield from extent_violations({"rows": shape[0], "columns": math.prod(shape[1:])})
    for rank, target in enumerate(targets):
        name = f"out[{rank}]"
        if target.shape != shape or target.element is not views[0].element:
            given = f"{target.element} of shape {target.shape}"
            rule = f"the gathered array holds {views[0].element} of shape {shape}"
            yield Violation(name, given, rule, "Pass an array like that, or leave out=")
        if target.read_only:
            yield Violation(name, "a read-only array", "it is written", "Pass a writable array")
    yield from unmovable({"arrays": views, "out": targets})


# --- the operation ----------------------------------------------------------------------------


class AllGather:
    """The launches for arrays and outputs of given layouts."""

    def __init__(self, *layouts: Layout, workspace: Workspace, shards: Shards) -> None:
        del layouts  # the key
        self._workspace, self._shards = workspace, shards
        self._launches: RankedLaunches | None = None

    def prepared(
        self, rows: Sequence[ArrayView], full: Sequence[ArrayView]
    ) -> tuple[RankedLaunches, list[list[int]]]:
        """Return the launches and their addresses; hold the workspace's lock."""
        if self._launches is None:
            self._launches = RankedLaunches.prepared(
                self._workspace, lambda rank: self._prepare(rank, rows, full)
            )
        addresses = [
            [view.address for view in self._parameters(rank, rows, full)]
            for rank in range(len(self._workspace.ranks))
        ]
        return self._launches, addresses

    def _parameters(
        self, rank: int, rows: Sequence[ArrayView], full: Sequence[ArrayView]
    ) -> list[ArrayView]:
        """Return the own rows, and the same rows of all outputs; the last one fills up."""
        shards = self._shards
        own = rows[rank] if shards.rows[rank] else full[rank]
        targets = [shards.part(view, rank) for view in full]
        return [own, *targets, *itertools.repeat(targets[-1], MAX_RANKS - len(targets))]

    def _prepare(
        self, rank: int, rows: Sequence[ArrayView], full: Sequence[ArrayView]
    ) -> tuple[Any, object]:
        workspace, shards = self._workspace, self._shards
        ranks = workspace.ranks
        tiles = [push_tile(view, _PUSH_ROWS) for view in self._parameters(rank, rows, full)]
        kernel = shipped_kernel(
            "all_gather.cu", {"PushTile": tiles[0].cuda_type}, {"PUSH_STAGES": _STAGES}
        )
        backend = backend_of(rows[rank].device)
        resident = backend.limits.sms // ranks.sharing(rank)
        units = len(ranks) * shards.max_units
        arguments = (
            *tiles,
            workspace.signals[rank],
            shards.argument(workspace.slots),
            Pointer(workspace.rounds[rank]),
        )
        launch = kernel.prepare(
            min(resident, units),
            _THREADS,
            arguments,
            device=ranks.memories[rank].ordinal,
            stream=ranks.streams[rank],
        )
        return launch, None
