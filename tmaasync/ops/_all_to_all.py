"""ops.all_to_all: rows to the owners of their experts, and back, with all_to_all.cu."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._kinds import check_flags
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import backend_of
from tmaasync.ops._allocation import fill
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._layouts import Layout, refuse_overlap
from tmaasync.ops._operation import overridden, shipped_kernel
from tmaasync.ops._ragged_tiles import WORD, in_words
from tmaasync.ops._ranks import (
    MAX_RANKS,
    RankedAddresses,
    RankedCall,
    RankedLaunches,
    Ranks,
    RepeatedCalls,
    Shards,
    Workspace,
    as_rows,
    unmovable,
    views_of,
)
from tmaasync.ops._reduce_ranks import resident_ctas
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map
from tmaasync.tile import Pointer

# Mirrors of constants and structs in kernels/all_to_all.cu.
_THREADS = 128
MAX_EXPERTS = 1024
_BUFFERS = struct.Struct(f"<{MAX_RANKS}Q")
_SIZES = struct.Struct("<4i")

_DISPATCHES, _COMBINES = RepeatedCalls(), RepeatedCalls()

_Views = Sequence[ArrayView]


@dataclass(frozen=True)
class ExchangeConfig:
    """The tile of one TMA load and store, and the tiles in flight in a CTA."""

    source: ClassVar[str] = "all_to_all.cu"

    tile_rows: int = 4
    row_bytes: int = 2048
    stages: int = 8


def all_to_all(
    arrays: Sequence[Any],
    counts: Sequence[Any],
    out: Sequence[Any],
    *,
    ends: Sequence[Any] | None = None,
    combine: bool = False,
    streams: Any = None,
) -> list[Any]:
    """Send the rows of all ranks to the owners of their experts (MoE dispatch), or back (combine).

    Each of P ranks is a GPU, or a device of `emulate.devices`, and owns E / P of the E experts:
    rank r the experts from r E / P on. A rank's tokens are rows in the order of their experts. The
    packed rows of an owner are in the order of its experts, and for each expert in the order of the
    ranks that sent them: `grouped_matmul` takes them with ``ends``. With one expert per rank this
    is the all-to-all of uneven splits.

    The counts stay on the devices: the kernels exchange them, and move the rows by TMA, over
    NVLink, through ragged maps that clip each segment at its end. The call returns after the
    launches; results are complete in the order of each rank's stream. Call `enable_peer_access`
    once before. The first call on these devices and streams allocates and waits for the GPUs; later
    calls do neither, and CUDA graphs can capture them.

    Args:
        arrays: One per rank, 1 to 8: [rows, ...], on the rank's device; tokens, or with
            ``combine=True`` packed rows. All dimensions but the first, and the type, are equal on
            all ranks. The rows may be any distance apart; the elements of a row are contiguous, and
            their bytes a multiple of 16.
        counts: One per rank, int32 [E], contiguous, on the rank's device: how many of its tokens go
            to each expert. E is a multiple of P, up to 1024. For a combine, the counts of the
            dispatch. Negative ones count as 0, and tokens beyond a rank's array are left out.
        out: The outputs, one per rank, as ``arrays``, of any number of rows: packed rows, or with
            ``combine=True`` tokens. Rows after the last one received are not written. Rows that a
            packed array has no room for are dropped; a combine does not write their tokens.
        ends: For a dispatch, one per rank, int32 [E / P], contiguous, on the rank's device: written
            with the row at which each of its experts ends in the packed rows.
        combine: Send packed rows back to the rows of their tokens.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        ``out``.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU is older than sm_90.
    """
    check_flags(combine=combine)
    repeated = _COMBINES if combine else _DISPATCHES
    lists = (arrays, counts, *([] if ends is None else [ends]), out)
    if repeated.run(lists, streams):
        return list(out)
    views = views_of("arrays", arrays)
    ranks = Ranks.of("arrays", views, streams)
    given = views_of("counts", counts, len(views))
    targets = views_of("out", out, len(views))
    written = [] if ends is None else views_of("ends", ends, len(views))
    violations = [
        *_unlike({"arrays": views, "out": targets}),
        *_unfit_counts("counts", given, given[0].shape[0] if given[0].ndim else 0),
        *_unfit_ends(given, written, combine=combine),
        *_unfit(ranks, {"arrays": views, "counts": given, "out": targets, "ends": written}),
    ]
    ArgumentError.raise_for(violations)
    _refuse_overlaps({"arrays": views, "counts": given, "out": targets, "ends": written})
    if all(view.is_empty for view in (*views, *targets)):
        for view in written:
            fill(view, 0)
        return list(out)
    operands = [as_rows(view) for view in views], given, [as_rows(view) for view in targets]
    done = exchange_rows(ranks, *operands, written, combine=bool(combine))
    repeated.remember(lists, *done, [view.framework for view in views])
    return list(out)


def exchange_rows(
    ranks: Ranks, rows: _Views, counts: _Views, targets: _Views, ends: _Views, *, combine: bool
) -> RankedCall:
    """Launch; return the call."""
    layouts = list(map(Layout.of, (*rows, *targets)))
    resident = resident_ctas(ranks, layouts[: len(ranks)])
    experts = counts[0].shape[0]
    workspace = Workspace.of(ranks, rows, resident, 4 * experts * len(ranks))
    operation = workspace.calls.operation(
        AllToAll, *layouts, resident=resident, experts=experts, combine=combine, has_ends=bool(ends)
    )
    for rank, stream in enumerate(ranks.streams):
        own = [each[rank] for each in (rows, counts, targets, ends) if each]
        backend_of(rows[rank].device).wait_for_producers(tuple(own), stream)
    with workspace.lock:
        call = RankedCall(workspace, *operation.prepared(workspace, rows, counts, targets, ends))
    call.run()
    return call


# --- checks -----------------------------------------------------------------------------------


def _unlike(arrays: dict[str, _Views]) -> Iterator[Violation]:
    first = arrays["arrays"][0]
    for name, views in arrays.items():
        for rank, view in enumerate(views):
            at = f"{name}[{rank}]"
            if view.ndim < 2:
                rule, remedy = "it has two dimensions or more", "Reshape it to (rows, columns)"
                yield Violation(at, f"of shape {view.shape}", rule, remedy)
            elif view.shape[1:] != first.shape[1:] or view.element is not first.element:
                shape = f"{first.element} of shape {first.shape}"
                rule = f"arrays[0] holds {shape}; only rows may differ"
                given = f"{view.element} of shape {view.shape}"
                yield Violation(at, given, rule, "Pass arrays of one type and one shape of rows")


def _unfit_counts(name: str, views: _Views, length: int) -> Iterator[Violation]:
    for rank, view in enumerate(views):
        if view.shape != (length,) or view.element.name != "int32" or not is_contiguous(view):
            rule = f"it is a contiguous int32 array of shape ({length},)"
            given = f"{view.element} of shape {view.shape}, strides {view.strides_bytes} bytes"
            yield Violation(f"{name}[{rank}]", given, rule, "Pass an array like that")
    if name == "counts" and (length % len(views) or not 0 < length <= MAX_EXPERTS):
        rule = f"{len(views)} ranks own equally many experts, up to {MAX_EXPERTS} in all"
        yield Violation("counts[0].shape", f"({length},)", rule, "Add experts without tokens")


def _unfit_ends(counts: _Views, ends: _Views, *, combine: bool) -> Iterator[Violation]:
    if ends and combine:
        rule, remedy = "a combine has none: its output is not packed", "Leave ends= out"
        yield Violation("ends", "a list of arrays", rule, remedy)
    elif ends and counts[0].ndim:
        yield from _unfit_counts("ends", ends, counts[0].shape[0] // len(counts))


def _unfit(ranks: Ranks, lists: dict[str, _Views]) -> Iterator[Violation]:
    for name, views in lists.items():
        if views and name != "arrays":
            yield from ranks.misplaced(name, views, "arrays")
        for rank, view in enumerate(views):
            if name in {"out", "ends"} and view.read_only:
                rule, remedy = "it is written", "Pass a writable array"
                yield Violation(f"{name}[{rank}]", "a read-only array", rule, remedy)
    arrays = {name: lists[name] for name in ("arrays", "out")}
    yield from unmovable(arrays)
    for name, views in arrays.items():
        rows = {f"rows of {name}": sum(view.shape[0] for view in views if view.ndim)}
        yield from extent_violations(rows)
    columns = math.prod(lists["arrays"][0].shape[1:])
    yield from extent_violations({"columns": columns})
    if columns == 0:
        yield Violation("columns", 0, "a row has an element or more", "Leave the call out")


def _refuse_overlaps(lists: dict[str, _Views]) -> None:
    for rank in range(len(lists["arrays"])):
        others: dict[str, ArrayView] = {}
        for name, views in lists.items():
            if views and name in {"out", "ends"}:
                refuse_overlap(f"{name}[{rank}]", views[rank], others)
            others |= {f"{name}[{rank}]": view for view in views[rank : rank + 1]}


# --- the operation ----------------------------------------------------------------------------


class AllToAll:
    """The launches for arrays and outputs of given layouts.

    Attributes:
        resident: The largest number of CTAs of a rank, all of which run at once.
    """

    def __init__(
        self, *layouts: Layout, resident: int, experts: int, combine: bool, has_ends: bool
    ) -> None:
        del layouts, has_ends  # the key
        self.resident, self._experts, self._combine = resident, experts, combine
        self._below_bytes: dict[int, list[int]] = {}
        self._launches: RankedLaunches | None = None

    def prepared(
        self, workspace: Workspace, rows: _Views, counts: _Views, targets: _Views, ends: _Views
    ) -> tuple[RankedLaunches, RankedAddresses]:
        """Return the launches and their addresses; hold the workspace's lock."""
        local = workspace.ranks.local
        moved = {rank: self._moved(rank, rows, targets) for rank in local}
        others = {rank: [counts[rank], *ends[rank : rank + 1]] for rank in local}
        if self._launches is None:
            self._launches = RankedLaunches.prepared(
                workspace,
                lambda rank: self._prepare(
                    workspace, rank, moved[rank], others[rank], rows, targets
                ),
            )
        addresses = {}
        for rank in local:
            maps = zip(moved[rank], self._below_bytes[rank], strict=True)
            own = [view.address - below for view, below in maps]
            addresses[rank] = [*own, *(view.address for view in others[rank])]
        return self._launches, addresses

    @staticmethod
    def _moved(rank: int, rows: _Views, targets: _Views) -> list[ArrayView]:
        """Return a rank's array and all outputs; one with rows stands for those without."""
        filled = next(view for view in (rows[rank], *targets, *rows) if not view.is_empty)
        views = [filled if view.is_empty else view for view in (rows[rank], *targets)]
        own, *others = map(in_words, views)
        return [own, *others, *itertools.repeat(others[-1], MAX_RANKS - len(others))]

    def _prepare(
        self, workspace: Workspace, rank: int, moved: _Views, others: _Views, rows: _Views,
        targets: _Views,
    ) -> tuple[Any, object]:  # fmt: skip
        ranks = workspace.ranks
        config = overridden(ExchangeConfig())
        maps = [_ragged_map(view, config) for view in moved]
        self._below_bytes[rank] = [
            view.address - one.spec.address for view, one in zip(moved, maps, strict=True)
        ]
        packed, tokens = (rows, targets) if self._combine else (targets, rows)
        _, columns = moved[0].shape
        shards = Shards(tuple(view.shape[0] for view in packed), columns, moved[0].element.itemsize)
        first, second = (buffers.address for buffers in workspace.halves[rank])
        counts, *ends = others
        half = (second - first) // 4
        every = [halves[0].address for halves in workspace.halves]
        arguments = (
            *maps,
            Pointer(counts),
            Pointer(ends[0]) if ends else 0,
            workspace.signals[rank],
            shards.argument(workspace.slots),
            Pointer(workspace.rounds[rank]),
            _BUFFERS.pack(*every, *itertools.repeat(0, MAX_RANKS - len(every))),
            _SIZES.pack(self._experts, tokens[rank].shape[0], half, self._combine),
        )
        kernel = shipped_kernel(
            config.source,
            {"Rows": maps[0].cuda_type},
            {"STAGES": config.stages},
            "all_to_all",
        )
        across = -(-columns // maps[0].tile_shape[1])
        most = max(-(-view.shape[0] // config.tile_rows) for view in rows) + self._experts
        launch = kernel.prepare(
            min(self.resident, most * across),
            _THREADS,
            arguments,
            device=ranks.memories[rank].ordinal,
            stream=ranks.streams[rank],
        )
        return launch, None


def _ragged_map(view: ArrayView, config: ExchangeConfig) -> RaggedTensorMap:
    tile_shape = config.tile_rows, config.row_bytes // WORD.itemsize
    return create_ragged_tensor_map(view, tile_shape, max_length=view.shape[0])
