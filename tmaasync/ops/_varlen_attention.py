"""ops.varlen_attention: FlashAttention of packed sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._kinds import check_flags
from tmaasync.ops._allocation import Allocator, address_of, allocator, in_order
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._flash.abi import BATCH_LIMITS, record
from tmaasync.ops._flash.config import Batch, Variant
from tmaasync.ops._flash.float8 import (
    UNSCALED,
    Scales,
    check_factor,
    given_scales,
    scale_names,
    scales_of,
)
from tmaasync.ops._flash.launches import (
    NO_SEQUENCES,
    Addresses,
    PackedLaunch,
    Sequences,
    Step,
    Work,
    WorkListArguments,
    attend_steps,
    describe_paged_sequence,
    describe_sequence,
    work_list_bytes,
    work_list_step,
)
from tmaasync.ops._flash.operands import Operands, Options, Results, Scores, reachable
from tmaasync.ops._flash.packed import PackedProblem
from tmaasync.ops._flash.pages import Pages, PageTable, check_pages, rows_of_pages
from tmaasync.ops._flash.sequences import Lengths
from tmaasync.ops._flash.tiles import packed_maps
from tmaasync.ops._layouts import Layout, is_apart
from tmaasync.ops._operation import LaunchSequence, NamedBinding, Operation
from tmaasync.ops._report import report_of
from tmaasync.ops._sequence_lengths import CumulativeLengths
from tmaasync.tile import Pointer

_AXES = "[rows, heads, head_dim]"
_PAGE_AXES = "[pages, page_size, heads, head_dim]"
_FLOAT32, _BYTE = element(np.float32), element(np.uint8)
_INTEGERS = (int, type(None))
_ARRAYS = ("q", "k", "v", "out")
_OUT = _ARRAYS.index("out")
_INPUTS = ("cu_seqlens_q", "cu_seqlens_k", "page_table")
_Inputs = tuple[ArrayView, ArrayView, ArrayView | None]
"""Cumulative lengths of q and of k, int32 on the arrays' device, and the page table."""
_CALLS = CallCache()


def varlen_attention(  # noqa: PLR0913 - the parameters of attention, and the sequences
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    page_table: Any = None,
    return_lse: bool = False,
    scales: tuple[Any, Any, Any] | None = None,
    dtype: object = None,
    batch_invariant: bool = False,
    out: Any = None,
    check: bool = False,
    stream: object = None,
) -> Any:
    """Compute `attention` within each sequence of packed arrays.

    TMA itself stops at the end of each sequence: loads fill the rows after it with zeros, and
    stores skip them. Rows after the last sequence are not written. The options of the scores and
    the mask are as in `attention`, for each sequence; so is ``return_lse``.

    The rows of q and k together may be up to 2^31 - 2^18 (2,147,221,504); with pages the
    rows of q and max_seqlen_k together, and the rows of all pages.

    Args:
        q: [rows, heads, head_dim], bfloat16, float16 or float8_e4m3fn, as in `attention`.
        k: [key_rows, kv_heads, head_dim]; with ``page_table`` [pages, page_size, kv_heads,
            head_dim], ``page_size`` a multiple of 8. Gaps between pages must be whole rows.
        v: As k.
        cu_seqlens_q: Cumulative lengths of the sequences in q: 0 first, the total last; integers in
            host memory or on the device. In host memory they are checked, and their work list is
            reused by a later call with the same lengths.
        cu_seqlens_k: The same for k, or for the keys in its pages; by default ``cu_seqlens_q``.
        max_seqlen_q: Rows of the longest sequence in q; required if ``cu_seqlens_q`` is on a
            device.
        max_seqlen_k: The same for k; without ``cu_seqlens_k`` by default ``max_seqlen_q``.
        page_table: The pages of each sequence's keys, [sequences, pages_per_sequence], int32 on the
            arrays' device: key i of sequence s is row ``i % page_size`` of page
            ``page_table[s, i // page_size]``. Sequences may share pages. Rows after a sequence's
            last key, and entries after its last page, are ignored.
        scales: As in `attention`, for float8 operands: numbers, or arrays with one element or of
            shape [sequences, kv_heads].
        dtype: As in `attention`: the element type of q, k and v, for frameworks without it.
        batch_invariant: Whether a sequence's bits stay the same whatever the other sequences and
            the batch are. The keys of every sequence are then split alike where the rows of
            ``max_seqlen_q`` queries fit in one tile (decode), and else not split: the bits depend
            on which of the two it is.
        out: The output, an array like q; for float8 operands bfloat16 or float16. By default a new
            contiguous array (for float8 operands bfloat16), whose rows after the last sequence are
            uninitialised.
        check: Whether to check cumulative lengths on a device and the entries of ``page_table``
            too, which waits for the device. Unchecked, a sequence outside its array is skipped,
            and a later call reports it.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output, [rows, heads, head_dim]; with ``return_lse`` the pair (output, log-sum-exp),
        log-sum-exp as float32 [heads, rows].

    Raises:
        ArgumentError: An argument is invalid; every broken rule is listed. Or an earlier call had
            invalid cumulative lengths on a device or an invalid page, unchecked.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> q = np.zeros((5, 1, 8), np.float16)
    >>> v = np.arange(40, dtype=np.float16).reshape(5, 1, 8)
    >>> varlen_attention(q, q, v, [0, 2, 5])[:, 0, 0]
    array([ 4.,  4., 24., 24., 24.], dtype=float16)
    """
    has_own_keys = cu_seqlens_k is not None and cu_seqlens_k is not cu_seqlens_q
    arrays: tuple[Any, ...] = (cu_seqlens_q, k, q, v)
    if has_own_keys:
        arrays += (cu_seqlens_k,)
    if page_table is not None:
        arrays += (page_table,)
    if scales is None:
        numbers, given_arrays = None, ()
    else:
        numbers, given_arrays = given_scales(scales)
        arrays += given_arrays
    if out is not None:
        arrays += (out,)
    if check is not False or batch_invariant is not False:
        check_flags(check=check, batch_invariant=batch_invariant)
    longest = (max_seqlen_q, max_seqlen_k)
    options = (causal, scale, window, softcap, return_lse, batch_invariant, *longest)
    form = (has_own_keys, page_table is None, out is None, numbers, dtype)
    # Equal keys must mean equal calls (True equals 1), and ``check`` repeats its checks every time.
    is_key = not check and type(max_seqlen_q) in _INTEGERS and type(max_seqlen_k) in _INTEGERS
    if is_key:
        done = _CALLS.run(arrays, (form, options), stream)
        if done is not None:
            at = len(arrays) - (out is not None)
            return done[at : at + 2] if return_lse else done[at]
    key = (form, options) if is_key else None
    given = Options(*options[:-2])
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, *longest, check=check)
    float8 = _Float8(dtype, numbers, given_arrays)
    call = _Call(arrays, key, given, q, k, v, lengths, page_table, out, has_own_keys, float8)
    return _attend(call, stream)


class _Float8(NamedTuple):
    """The arguments for float8 operands; without scales the numbers are empty."""

    dtype: object
    numbers: tuple[float | None, ...] | None
    scale_arrays: tuple[Any, ...]

    def scales(self, operands: Operands, batch: int) -> tuple[Scales, tuple[ArrayView, ...]]:
        if self.numbers is None:
            return UNSCALED, ()
        return scales_of(self.numbers, self.scale_arrays, operands, batch)


class _Call(NamedTuple):
    """A call as its cache key: its arrays, and a key of everything else.

    The arrays are cu_seqlens_q, k, q and v, then cu_seqlens_k if it is another array, the page
    table, scales that are arrays, and the output, if passed. The key is None for uncached calls.
    """

    arrays: tuple[Any, ...]
    key: tuple[Any, ...] | None
    options: Options
    q: Any
    k: Any
    v: Any
    lengths: Lengths
    page_table: Any
    out: Any
    has_own_keys: bool
    float8: _Float8

    def names(self, operation: VarlenAttention) -> tuple[str, ...]:
        """The names of the arrays, then of new results.

        One array is not passed as both cumulative lengths: torch's guard refuses one tensor twice.
        """
        own_keys = ("cu_seqlens_k",) if self.has_own_keys else ()
        table = () if self.page_table is None else ("page_table",)
        first = ("cu_seqlens_q", "k", "q", "v", *own_keys, *table)
        lse = ("lse",) if operation.variant.has_lse else ()
        return *first, *operation.names_of_scales, "out", *lse


def _attend(call: _Call, stream: object) -> Any:
    """Run a call that is not in the cache, and cache it."""
    options = call.options
    is_paged = call.page_table is not None
    axes = (_AXES, _PAGE_AXES if is_paged else _AXES)
    dtype = call.float8.dtype
    operands = Operands.of(call.q, call.k, call.v, *axes, may_be_float8=True, dtype=dtype)
    scores = Scores.of(operands.q.shape[-1], *options[:4])
    # Sequences may share pages, so cumulative lengths of paged keys have no limit.
    cumulative, batch = call.lengths.of(operands, keys_are_packed=not is_paged)
    table = PageTable.of(call.page_table, operands, batch) if is_paged else None
    if table is not None and call.lengths.check:
        check_pages(table, *(side.values for side in cumulative))
    scales, scale_arrays = call.float8.scales(operands, batch.size)
    results = Results(operands, call.out, return_lse=options.return_lse)
    if not operands.q.is_empty:
        operation = _CALLS.operation(
            VarlenAttention,
            operands.layouts,
            results.layout,
            batch._replace(is_invariant=options.batch_invariant),
            scores,
            Pages() if table is None else table.pages,
            has_lse=options.return_lse,
            scales=scales,
        )
        pages = None if table is None else table.view
        lse = results.lse
        operation.run(operands, results.out, lse, cumulative, stream, pages, scale_arrays)
        if all(side.is_direct for side in cumulative) and not operands.k.is_empty:
            _remember(call, operation, results)
    return results.returned


def _remember(call: _Call, operation: VarlenAttention, results: Results) -> None:
    if call.key is None:
        return
    workspaces = operation.workspaces(results.like)
    _CALLS.remember(
        call.arrays,
        call.key,
        NamedBinding(operation, (*call.names(operation), *workspaces)),
        [_arrays.view(array).framework for array in call.arrays],
        results.out.device,
        allocators=(*results.allocators(), *workspaces.values()),
        has_workspace=True,
    )


# --- the operation ------------------------------------------------------------------------------


class _KeptList(NamedTuple):
    """A work list with its inputs (stream, cumulative lengths in host memory) and its launch."""

    content: object
    array: Any
    launch: PackedLaunch


class VarlenAttention(Operation):
    """Attention over packed arrays of given layouts, and a batch of given size.

    A call is two launches, or three with split-KV: `PackedLaunch`. Decode from a paged KV cache
    with split-KV needs no work list, so it is two. The work list is reused while cumulative lengths
    in host memory stay the same, except with a paged KV cache: making the list checks the pages.
    """

    def __init__(
        self,
        operands: Sequence[Layout],
        out: Layout,
        batch: Batch,
        scores: Scores,
        pages: Pages,
        *,
        has_lse: bool,
        scales: Scales = UNSCALED,
    ) -> None:
        super().__init__(out.device)
        self._scales = scales
        if operands[0].element.itemsize == 1:
            check_factor(scores, scales)
        self.is_paged = pages.size > 0
        self._spans = tuple(layout.span_bytes for layout in (*operands, out))
        self.variant = Variant.of(scores, has_lse=has_lse, is_packed=True, page_size=pages.size)
        q, k, _ = operands
        self._problem = PackedProblem(q, k, batch, scores, pages, self.variant, self.backend.limits)
        self._below_bytes: tuple[int, ...] = (0, 0, 0, 0)
        describe = describe_paged_sequence if self.is_paged else describe_sequence
        self._report = report_of(self.backend, describe)
        self._kept: _KeptList | None = None

    def run(
        self,
        operands: Operands,
        out: ArrayView,
        lse: ArrayView | None,
        cumulative: tuple[CumulativeLengths, CumulativeLengths],
        stream: object,
        page_table: ArrayView | None = None,
        scales: Sequence[ArrayView] = (),
    ) -> None:
        """Launch on these arrays; ``scales`` holds the scales that are arrays.

        Raises:
            ArgumentError: Cumulative lengths on a device were invalid, or a page did not exist, in
                an earlier call like this, or, on the emulator, in this one.
        """
        given = [
            *operands,
            out,
            *scales,
            *(_arrays.view(one.values) for one in cumulative if one.is_on_device),
        ]
        handle = self.ordered(given if page_table is None else [*given, page_table], stream)
        if operands.k.is_empty:  # a tensor map needs a row; this one is never loaded
            instead = operands.q._replace(shape=(1, *operands.k.shape[1:]))
            operands = Operands(operands.q, instead, instead)
        arrays = (*operands, out)
        views: dict[str, ArrayView | None] = dict(zip(_ARRAYS, arrays, strict=True))
        views |= {"lse": lse, **dict(zip(self.names_of_scales, scales, strict=True))}
        with self.backend.current(), in_order(out.framework, out.device, handle):
            # Freed at once: in stream order it stays in use until the launches end.
            memory = {name: make() for name, make in self._new_partials(operands.q).items()}
            content, kept = self._content(cumulative, handle), self._kept
            if content is not None and kept is not None and kept.content == content:
                at = self._addresses_of(views, {"schedule": kept.array, **memory})
                kept.launch.attend_at(at, handle)
                return
            memory |= {name: make() for name, make in self._new_lists(operands.q).items()}
            cumulative_q, cumulative_k = (
                _arrays.view(
                    one.values if one.is_direct else one.on(self.backend, out.framework, handle)
                )
                for one in cumulative
            )
            inputs = (cumulative_q, cumulative_k, page_table)
            work_list = memory.get("schedule", 0)
            launch = self.prepared(lambda: self._prepare(arrays, lse, inputs, work_list))
            views |= zip(_INPUTS, inputs, strict=True)
            launch.launch_at(self._addresses_of(views, memory), handle)
            if content is not None and isinstance(launch, PackedLaunch):
                self._kept = _KeptList(content, work_list, launch)

    @property
    def names_of_scales(self) -> tuple[str, ...]:
        return scale_names(self._scales)

    def bind_named(self, named: dict[str, int]) -> Binding | None:
        if self._launch is None:
            return None
        if not is_apart(_OUT, [named[name] for name in _ARRAYS], self._spans):
            return None
        return self._launch, self._addresses(**named)

    def workspaces(self, like: ArrayView) -> dict[str, Allocator]:
        """Return allocators of the work list and, with split-KV, of the partial outputs."""
        return self._new_lists(like) | self._new_partials(like)

    def _new_lists(self, like: ArrayView) -> dict[str, Allocator]:
        config = self._problem.config
        if config.one_tile_each:
            return {}
        list_bytes = work_list_bytes(self._problem.max_tiles_of_head, is_paged=self.is_paged)
        # An array of bytes, because with pages it holds pointers, and the emulator follows them.
        return {"schedule": allocator(like, (list_bytes,), _BYTE)}

    def _new_partials(self, like: ArrayView) -> dict[str, Allocator]:
        config = self._problem.config
        if not config.splits_keys:
            return {}
        splits = self._problem.max_tiles * config.kv_splits
        elements = splits * config.partial_bytes // _FLOAT32.itemsize
        return {"partials": allocator(like, (elements,), _FLOAT32)}

    def _addresses_of(
        self, views: Mapping[str, ArrayView | None], memory: Mapping[str, Any]
    ) -> Addresses:
        named = {name: view.address for name, view in views.items() if view is not None}
        return self._addresses(**named, **{one: address_of(memory[one]) for one in memory})

    def _addresses(self, *, cu_seqlens_q: int = 0, **named: int) -> Addresses:
        """Without ``cu_seqlens_k`` the keys have the lengths of the queries."""
        named.setdefault("cu_seqlens_k", cu_seqlens_q)
        for name, below in zip(_ARRAYS, self._below_bytes, strict=True):
            named[name] -= below
        return Addresses(**named, values=named["v"], cu_seqlens_q=cu_seqlens_q)

    def _content(
        self, cumulative: tuple[CumulativeLengths, CumulativeLengths], stream: int
    ) -> object:
        """Return the inputs of the work list, if known: cumulative lengths in host memory."""
        if self.is_paged or any(one.is_on_device for one in cumulative):
            return None
        return (stream, *(one.values.tobytes() for one in cumulative))

    # --- made once ------------------------------------------------------------------------------

    def _prepare(
        self,
        arrays: Sequence[ArrayView],
        lse: ArrayView | None,
        inputs: _Inputs,
        work_list: Any = 0,
    ) -> PackedLaunch:
        sequences, is_listed = self._sequences(inputs), not self._problem.config.one_tile_each
        return PackedLaunch(
            self._prepare_list(sequences, work_list) if is_listed else None,
            self._prepare_attend(arrays, lse, sequences, work_list),
            self._report,
        )

    def _sequences(self, inputs: _Inputs) -> Sequences:
        cu_seqlens_q, cu_seqlens_k, page_table = inputs
        return Sequences(
            cu_seqlens_q,
            cu_seqlens_k,
            page_table=0 if page_table is None or page_table.is_empty else Pointer(page_table),
            broken_sequence=self._report.argument,
            limits=record(
                BATCH_LIMITS,
                max_queries=self._problem.batch.max_queries,
                max_keys=self._problem.batch.max_keys,
                table_step=self._problem.pages.table_step,
            ),
        )

    def _prepare_list(self, sequences: Sequences, work_list: Any) -> Step:
        section_keys, heads_at_once = self._problem.section
        arguments = WorkListArguments(
            sequences.cu_seqlens_q,
            sequences.cu_seqlens_k,
            schedule=work_list,
            page_table=sequences.page_table,
            broken_sequence=sequences.broken_sequence,
            section_keys=section_keys,
            heads_at_once=heads_at_once,
            limits=sequences.limits,
            problem=self._problem.record,
        )
        # One kernel for all splits: the list does not depend on kv_splits.
        return work_list_step(self.variant, replace(self._problem.config, kv_splits=1), arguments)

    def _prepare_attend(
        self,
        arrays: Sequence[ArrayView],
        lse: ArrayView | None,
        sequences: Sequences,
        work_list: Any,
    ) -> LaunchSequence:
        config = self._problem.config
        q, k, v, o = map(reachable, arrays)
        if self.is_paged:
            k, v = rows_of_pages(k), rows_of_pages(v)
        maps = packed_maps(q, k, v, o, config, self._problem.pages.size)
        self._below_bytes = tuple(
            view.address - map_.spec.address for view, map_ in zip(arrays, maps, strict=True)
        )
        tiles = self._problem.max_tiles
        work = Work(
            ctas=min(tiles * config.kv_splits, self.backend.limits.sms),
            schedule=work_list,
            waves=config.kv_splits,
            split_tiles=tiles if config.splits_keys else 0,
            splits=work_list,
            combined=packed_maps(q, k, v, o, config.combined, self._problem.pages.size),
            sequences=sequences if config.one_tile_each else NO_SEQUENCES,
        )
        numbers = self._problem.record
        steps = attend_steps(maps, self.variant, config, work, lse, numbers, self._scales)
        return LaunchSequence(*steps)
