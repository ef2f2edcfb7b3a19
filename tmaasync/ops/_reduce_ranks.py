"""ops.reduce_scatter and ops.all_reduce: the sum of the arrays of all ranks, by reduce_ranks.cu."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tmaasync._arrays import ArrayView, is_contiguous, may_overlap
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import backend_of
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._layouts import Layout
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
    even_shards,
    new_rows,
    unmovable,
    views_of,
)
from tmaasync.tile import Pointer, create_tma_tile

_TYPES = ("bfloat16", "float16", "float32")
_ROW_BYTES = 512
_TILE_ROWS = 16
_STAGES = 8
_CONSUMER_WARPS = 4
_MOST_FLAT_BYTES = 1024  # of a row of a contiguous array

_REPEATED_SCATTERS, _REPEATED_REDUCES = RepeatedCalls(), RepeatedCalls()

_Views = Sequence[ArrayView]


def reduce_scatter(arrays: Sequence[Any], *, out: Any = None, streams: Any = None) -> list[Any]:
    """Add the arrays of all ranks, and give each rank its rows of the sum.

    Each rank is a GPU, or a device of `emulate.devices`. Every rank loads its rows of all arrays by
    TMA, over NVLink, adds them in float32 in the order of the ranks, and rounds once: equal calls
    give equal bits. The call returns after the launches; results are complete in the order of each
    rank's stream. Call `enable_peer_access` once before. The first call on these devices and
    streams allocates signals and waits for the GPUs; later calls do neither, and CUDA graphs can
    capture them.

    Args:
        arrays: One per rank, 1 to 8: [M, ...], bfloat16, float16 or float32, on the rank's device,
            all of one shape and type. The rows may be any distance apart; the elements of a row are
            contiguous, and their bytes a multiple of 16.
        out: The outputs, one per rank: [M_r, ...], of the type of ``arrays``; the M_r add up to M,
            and may be 0. Contiguous rows as above. They overlap no array. By default new arrays,
            with M divided evenly: the first M % P ranks have one row more.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU is older than sm_90.
    """
    if out is not None and _REPEATED_SCATTERS.run((arrays, out), streams):
        return list(out)
    views, ranks = _checked(arrays, streams, least_dims=2)
    m, *inner = views[0].shape
    shapes = [(rows, *inner) for rows in even_shards(m, len(ranks))]
    outputs, targets = _outputs(ranks, views, shapes, out)
    violations = [*_unscattered(views, targets), *_overlaps(views, targets, in_place=False)]
    ArgumentError.raise_for([*violations, *unmovable({"arrays": views, "out": targets})])
    if views[0].is_empty:
        return outputs
    rows, owned = ([as_rows(view) for view in each] for each in (views, targets))
    shards = tuple(view.shape[0] for view in owned)
    done = reduce_rows(ranks, rows, owned, shards, all_reduce=False)
    if out is not None:
        _REPEATED_SCATTERS.remember((arrays, out), *done, [view.framework for view in views])
    return outputs


def all_reduce(arrays: Sequence[Any], *, out: Any = None, streams: Any = None) -> list[Any]:
    """Add the arrays of all ranks, and give every rank the sum.

    As `reduce_scatter`, but the rank that adds up a shard stores it into the outputs of all ranks
    by TMA: all ranks receive the same bits.

    Args:
        arrays: One per rank, 1 to 8: [M, ...], bfloat16, float16 or float32, on the rank's device,
            all of one shape and type. Contiguous, and a multiple of 16 bytes; or rows of contiguous
            elements, each a multiple of 16 bytes, any distance apart.
        out: The outputs, one per rank, of the shape and type of ``arrays`` and laid out by the same
            rules. ``out=arrays`` reduces in place; else they overlap no array. By default new
            arrays.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU is older than sm_90.
    """
    if out is not None and _REPEATED_REDUCES.run((arrays, out), streams):
        return list(out)
    views, ranks = _checked(arrays, streams, least_dims=1)
    outputs, targets = _outputs(ranks, views, [views[0].shape] * len(ranks), out)
    violations = [*_unlike("out", targets, views[0]), *_overlaps(views, targets, in_place=True)]
    ArgumentError.raise_for(violations)
    if views[0].is_empty:
        return outputs
    columns = _flat_columns([*views, *targets])
    if columns is None:
        ArgumentError.raise_for([*_flat(views), *unmovable({"arrays": views, "out": targets})])
    rows, full = (
        [as_rows(view) if columns is None else _as_flat_rows(view, columns) for view in each]
        for each in (views, targets)
    )
    shards = tuple(even_shards(rows[0].shape[0], len(ranks)))
    done = reduce_rows(ranks, rows, full, shards, all_reduce=True)
    if out is not None:
        _REPEATED_REDUCES.remember((arrays, out), *done, [view.framework for view in views])
    return outputs


def _outputs(
    ranks: Ranks, views: _Views, shapes: Sequence[tuple[int, ...]], out: Any
) -> tuple[list[Any], list[ArrayView]]:
    """Return the caller's outputs, or new arrays of these shapes, and views of them."""
    if out is not None:
        targets = views_of("out", out, len(views))
        ArgumentError.raise_for(ranks.misplaced("out", targets, "arrays"))
        return list(out), targets
    each = zip(ranks.memories, views, shapes, strict=True)
    new = [new_rows(memory, view, shape) for memory, view, shape in each]
    return new, views_of("out", new, len(views))


def _flat_columns(views: _Views) -> int | None:
    """Return the columns of contiguous arrays as matrices; None if an array is in rows only."""
    first = views[0]
    size_bytes = math.prod(first.shape) * first.element.itemsize
    if size_bytes % TMA_ALIGNMENT or not all(
        is_contiguous(view) and view.address % TMA_ALIGNMENT == 0 for view in views
    ):
        return None
    return math.gcd(size_bytes, _MOST_FLAT_BYTES) // first.element.itemsize


def _as_flat_rows(view: ArrayView, columns: int) -> ArrayView:
    itemsize = view.element.itemsize
    shape = math.prod(view.shape) // columns, columns
    return view._replace(shape=shape, strides_bytes=(columns * itemsize, itemsize))


# --- checks -----------------------------------------------------------------------------------


def _checked(arrays: Any, streams: Any, *, least_dims: int) -> tuple[list[ArrayView], Ranks]:
    """Return checked views of the arrays, and their ranks."""
    views = views_of("arrays", arrays)
    ranks = Ranks.of("arrays", views, streams)
    violations = []
    for rank, view in enumerate(views):
        name = f"arrays[{rank}]"
        if view.ndim < least_dims:
            rule = f"it has {('one dimension', 'two dimensions')[least_dims - 1]} or more"
            remedy = "Reshape it, for example to (n, 8) of float16"
            violations.append(Violation(name, f"of shape {view.shape}", rule, remedy))
        if view.element.name not in _TYPES:
            rule, remedy = f"it adds arrays of {', '.join(_TYPES)}", "Convert it with astype"
            violations.append(Violation(name, f"an array of {view.element}", rule, remedy))
    violations += _unlike("arrays", views, views[0])
    extents = {"rows": views[0].shape[:1], "columns": views[0].shape[1:]}
    violations += extent_violations({name: math.prod(of) for name, of in extents.items()})
    ArgumentError.raise_for(violations)
    return views, ranks


def _unlike(name: str, views: _Views, first: ArrayView) -> Iterator[Violation]:
    for rank, view in enumerate(views):
        if view.shape != first.shape or view.element is not first.element:
            rule = f"arrays[0] holds {first.element} of shape {first.shape}, and so do all"
            given = f"{view.element} of shape {view.shape}"
            yield Violation(f"{name}[{rank}]", given, rule, "Pass arrays of one shape and type")


def _unscattered(views: _Views, targets: _Views) -> Iterator[Violation]:
    first = views[0]
    for rank, view in enumerate(targets):
        if view.shape[1:] != first.shape[1:] or not view.shape or view.element is not first.element:
            rule = f"arrays[0] holds {first.element} of shape {first.shape}; only rows may differ"
            given = f"{view.element} of shape {view.shape}"
            yield Violation(f"out[{rank}]", given, rule, "Pass an array like that, or leave out=")
            return
    found = [view.shape[0] for view in targets]
    if sum(found) != first.shape[0]:
        rule = f"they divide the {first.shape[0]} rows of arrays[0]"
        yield Violation("out", f"of {found} rows", rule, "Pass shards of as many rows in all")


def _overlaps(views: _Views, targets: _Views, *, in_place: bool) -> Iterator[Violation]:
    for rank, (view, target) in enumerate(zip(views, targets, strict=True)):
        name = f"out[{rank}]"
        if target.read_only:
            yield Violation(name, "a read-only array", "it is written", "Pass a writable array")
        is_same = (view.address, view.strides_bytes) == (target.address, target.strides_bytes)
        if may_overlap(target, view) and not (in_place and is_same):
            rule = f"it overlaps arrays[{rank}], which other ranks read meanwhile"
            yield Violation(name, f"at {target.address:#x}", rule, "Pass an array of its own")


def _flat(views: _Views) -> Iterator[Violation]:
    for rank, view in enumerate(views):
        if view.ndim < 2:
            rule = f"all arrays and outputs are contiguous multiples of {TMA_ALIGNMENT} bytes"
            given = f"at {view.address:#x}, of shape {view.shape}"
            remedy = "Pad all of them, or pass contiguous copies"
            yield Violation(f"arrays[{rank}]", given, rule, remedy)


# --- the operation ----------------------------------------------------------------------------


def reduce_rows(
    ranks: Ranks, rows: _Views, targets: _Views, shards: tuple[int, ...], *, all_reduce: bool
) -> RankedCall:
    """Launch; return the call."""
    call = prepared_reduce(ranks, rows, targets, shards, all_reduce=all_reduce)
    call.run()
    return call


def prepared_reduce(
    ranks: Ranks,
    rows: _Views,
    targets: _Views,
    shards: tuple[int, ...],
    *,
    all_reduce: bool = False,
    is_reversed: bool = False,
) -> RankedCall:
    """Return the call; with ``is_reversed`` the last rank's shard comes first."""
    layouts = list(map(Layout.of, (*rows, *targets)))
    resident = resident_ctas(ranks, layouts[: len(ranks)])
    workspace = Workspace.of(ranks, rows, resident)
    operation = workspace.calls.operation(
        ReduceRanks,
        *layouts,
        shards=Shards(shards, rows[0].shape[1], rows[0].element.itemsize, is_reversed),
        resident=resident,
        all_reduce=all_reduce,
    )
    for own, target, stream in zip(rows, targets, ranks.streams, strict=True):
        backend_of(own.device).wait_for_producers((own, target), stream)
    with workspace.lock:
        return RankedCall(workspace, *operation.prepared(workspace, rows, targets))


def resident_ctas(ranks: Ranks, layouts: Sequence[Layout]) -> int:
    """Return how many CTAs of every rank run at once; the ranks' arrays have these layouts."""
    return min(
        backend_of(layout.device).limits.sms // ranks.sharing(rank)
        for rank, layout in enumerate(layouts)
    )


class ReduceRanks:
    """The launches for arrays and outputs of given layouts.

    Attributes:
        resident: The largest number of CTAs of a rank, all of which run at once.
    """

    def __init__(self, *layouts: Layout, shards: Shards, resident: int, all_reduce: bool) -> None:
        del layouts  # the key
        self._shards, self.resident, self._all_reduce = shards, resident, all_reduce
        self._launches: RankedLaunches | None = None

    def prepared(
        self, workspace: Workspace, rows: _Views, targets: _Views
    ) -> tuple[RankedLaunches, list[list[int]]]:
        """Return the launches and their addresses; hold the workspace's lock."""
        ranks = range(len(workspace.ranks))
        parameters = [self._parameters(rank, rows, targets) for rank in ranks]
        if self._launches is None:
            self._launches = RankedLaunches.prepared(
                workspace, lambda rank: self._prepare(workspace, rank, parameters[rank])
            )
        return self._launches, [[view.address for view in own] for own in parameters]

    def _parameters(self, rank: int, rows: _Views, targets: _Views) -> list[ArrayView]:
        """Return the rows of a rank in all arrays, and in the outputs; the last one fills up."""
        shards = self._shards
        sources = [shards.part(view, rank) for view in rows]
        if self._all_reduce:
            stored = [shards.part(view, rank) for view in targets]
        else:  # an empty shard is never stored; its tile lies over the array
            stored = [targets[rank] if shards.rows[rank] else rows[rank]]
        return [*_filled(sources), *_filled(stored)]

    def _prepare(self, workspace: Workspace, rank: int, parameters: _Views) -> tuple[Any, object]:
        shards, ranks, element = self._shards, workspace.ranks, parameters[0].element
        shape = _TILE_ROWS, _ROW_BYTES // element.itemsize
        tiles = [create_tma_tile(view, shape) for view in parameters]
        constants = {"STAGES": _STAGES, "CONSUMER_WARPS": _CONSUMER_WARPS}
        kernel = shipped_kernel("reduce_ranks.cu", {"Tile": tiles[0].cuda_type}, constants)
        arguments = (
            *tiles,
            workspace.signals[rank],
            shards.argument(workspace.slots),
            Pointer(workspace.rounds[rank]),
            len(ranks) if self._all_reduce else 1,
        )
        across = -(-shards.columns // shape[1])
        most = -(-max(shards.rows) // shape[0]) * across  # the same number on all ranks
        launch = kernel.prepare(
            min(self.resident, most),
            32 * (_CONSUMER_WARPS + 1),
            arguments,
            device=ranks.memories[rank].ordinal,
            stream=ranks.streams[rank],
        )
        return launch, None


def _filled(views: _Views) -> list[ArrayView]:
    return [*views, *itertools.repeat(views[-1], MAX_RANKS - len(views))]
