"""ops.varlen_attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._ragged.batch import MAX_ROWS
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._plans import Layout, PlanCache
from tmaasync.ops._results import address_of, empty, maker
from tmaasync.ops.attention.arguments import Views, check_output, reachable, refuse
from tmaasync.ops.attention.pages import PageTable, check_pages
from tmaasync.ops.attention.scores import Scores
from tmaasync.ops.attention.varlen_plan import Batch, VarlenPlan, varlen_plan_for
from tmaasync.ops.ragged.lengths import Limits, Sums

__all__ = ["varlen_attention"]

_AXES = "[rows, heads, head_dim]"
_PAGE_AXES = "[pages, page_size, heads, head_dim]"
_FLOAT32 = element(np.float32)
_INTEGERS = (int, type(None))


def varlen_attention(  # noqa: PLR0913 - what attention has, and the sequences
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
    out: Any = None,
    check: bool = False,
    stream: object = None,
) -> Any:
    """Attend within each of the sequences that lie one after the other in packed arrays.

    TMA itself stops at each sequence's end: loads bring zeros for what lies behind it, whatever
    that holds, and stores leave it alone. Rows behind the last sequence are not touched.

    Args:
        q: [rows, heads, head_dim], bfloat16 or float16, as in `attention`.
        k: [key_rows, kv_heads, head_dim]; with ``page_table`` [pages, page_size, kv_heads,
            head_dim], ``page_size`` a multiple of 8. Pages may lie apart, by whole rows.
        v: As k.
        cu_seqlens_q: Running sums of the sequences' lengths in q: 0 first, the total last; integers
            in host memory or on the device. In host memory they are checked, and what follows from
            them is kept for the next call with the same ones.
        cu_seqlens_k: The same in k, or of the keys in its pages; by default that of q.
        max_seqlen_q: Rows of the longest sequence in q; needed where ``cu_seqlens_q`` is on a
            device.
        max_seqlen_k: The same in k; by default that of q, where ``cu_seqlens_k`` is left out.
        causal: As in `attention`, for each sequence.
        scale: As in `attention`.
        window: As in `attention`.
        softcap: As in `attention`.
        page_table: The pages of each sequence's keys, [sequences, pages_per_sequence], int32 on the
            arrays' device: key i of sequence s is row ``i % page_size`` of page
            ``page_table[s, i // page_size]``. Pages may be shared. What they hold behind a
            sequence's last key does not matter, nor do entries behind its last page.
        return_lse: As in `attention`.
        out: Where to: an array like q. By default a new contiguous one, whose rows behind the last
            sequence hold anything.
        check: Whether to check running sums on a device too, and what ``page_table`` holds, which
            waits for them. Unchecked, a sequence that its array cannot have is left out, and a
            later call says so.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output, [rows, heads, head_dim]; with ``return_lse`` a pair of it and the log-sum-exp,
        float32 [heads, rows].

    Raises:
        ArgumentError: An argument is not as described; every broken rule. Also where running sums
            on a device or pages, unchecked, were wrong in an earlier call.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> q = np.zeros((5, 1, 8), np.float16)
    >>> v = np.arange(40, dtype=np.float16).reshape(5, 1, 8)
    >>> varlen_attention(q, q, v, [0, 2, 5])[:, 0, 0]
    array([ 4.,  4., 24., 24., 24.], dtype=float16)
    """
    call = _Call(q, k, v, cu_seqlens_q, cu_seqlens_k, page_table, out)
    options = _Options(
        causal, scale, window, softcap, return_lse, max_seqlen_q, max_seqlen_k, check
    )
    if stream is None and options.can_be_key:
        again = _attend_again(call, options)
        if again is not None:
            return again
    return _attend_anew(call, options, stream)


def _attend_anew(call: _Call, options: _Options, stream: object) -> Any:
    """Attend over arrays that no plan is known for."""
    is_paged = call.page_table is not None
    views = Views.of(call.q, call.k, call.v, _AXES, _PAGE_AXES if is_paged else _AXES)
    scores = Scores.of(views.q.shape[-1], *options[:4])
    sums, batch = _sequences(call, options, views)
    table = PageTable.of(call.page_table, views, batch.size) if is_paged else None
    if table is not None:
        table.check_width(batch.max_keys)
        if options.check:
            check_pages(table, *(side.values for side in sums))
    out = call.out
    if out is None:
        out = empty(views.q, views.q.shape, views.q.element)
    target = _arrays.view(out, argument="out")
    check_output("out", target, views)
    lse = empty(views.q, _lse_shape(views.q), _FLOAT32) if options.return_lse else None
    if not views.q.is_empty:
        layout = Layout.of(reachable(target))
        pages, entries = (None, None) if table is None else (table.pages, table.view)
        has_lse = lse is not None
        plan = varlen_plan_for(views.layouts, layout, batch, scores, pages, has_lse=has_lse)
        lse_view = None if lse is None else _arrays.view(lse)
        plan.run(views, target, lse_view, sums, stream, entries)
        is_direct = all(side.is_direct for side in sums) and not views.k.is_empty
        if is_direct and options.can_be_key:
            _remember(call, options, plan, views.q)
    return out if lse is None else (out, lse)


def _sequences(call: _Call, options: _Options, views: Views) -> tuple[tuple[Sums, Sums], Batch]:
    """The running sums of q and k, and what they say.

    Raises:
        ArgumentError: They are no batch for these arrays.
    """
    max_q, max_k, cu_seqlens_k = options.max_seqlen_q, options.max_seqlen_k, call.cu_seqlens_k
    if cu_seqlens_k is None:
        cu_seqlens_k = call.cu_seqlens_q
        max_k = max_q if max_k is None else max_k
    limits_q = _limits("q", max_q, views.q.shape[0])
    limits_k = _limits("k", max_k, views.k.shape[0] if call.page_table is None else None)
    sums_q = _sums("q", call.cu_seqlens_q, limits_q, views.q.device, check=options.check)
    sums_k = _sums("k", cu_seqlens_k, limits_k, views.q.device, check=options.check)
    refuse(_batch_violations(sums_q, sums_k))
    longest = _longest("q", sums_q, max_q), _longest("k", sums_k, max_k)
    return (sums_q, sums_k), Batch(sums_q.batch, *longest)


class _Call(NamedTuple):
    """The arrays of a call, as the caller gave them."""

    q: Any
    k: Any
    v: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    page_table: Any
    out: Any

    @property
    def form(self) -> tuple[bool, bool, bool]:
        """Whether the running sums of q serve k too, and whether table and output are missing."""
        _, _, _, sums_q, sums_k, table, out = self
        return sums_k is None or sums_k is sums_q, table is None, out is None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Those that there are; running sums first, which may lie on the host."""
        q, k, v, sums_q, sums_k, table, out = self
        arrays = [sums_q, k, q, v]
        if sums_k is not None and sums_k is not sums_q:
            arrays.append(sums_k)
        if table is not None:
            arrays.append(table)
        if out is not None:
            arrays.append(out)
        return tuple(arrays)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Theirs."""
        return tuple(_arrays.view(array).framework for array in self.arrays)


class _Options(NamedTuple):
    """What else decides the plan."""

    causal: bool | str
    scale: float | None
    window: tuple[int | None, int | None] | None
    softcap: float | None
    return_lse: bool
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    check: bool

    @property
    def can_be_key(self) -> bool:
        """Whether the plan can be found again by them; checks are made anew each time."""
        _, _, _, _, _, max_q, max_k, check = self
        return not check and type(max_q) in _INTEGERS and type(max_k) in _INTEGERS


class _Known(NamedTuple):
    """A plan that served arrays like these before."""

    plan: VarlenPlan
    make_output: Callable[[], Any]
    make_lse: Callable[[], Any]


_PLANS: PlanCache[_Known] = PlanCache()


def _remember(call: _Call, options: _Options, plan: VarlenPlan, q: ArrayView) -> None:
    make_lse = maker(q, _lse_shape(q), _FLOAT32)
    known = _Known(plan, maker(q, q.shape, q.element), make_lse)
    frameworks = [_arrays.view(array).framework for array in call.arrays]
    _PLANS.remember(call.arrays, (call.form, options), known, frameworks, q.device)


def _attend_again(call: _Call, options: _Options) -> Any:
    """The same as an earlier call with arrays like these; None if there was none."""
    found = _PLANS.find(call.arrays, (call.form, options), None)
    if found is None:
        return None
    (plan, make_output, make_lse), (sums_q, k, q, v, *others), stream = found
    has_same_sums, has_no_table, has_no_output = call.form
    more = iter(others)
    sums_k = sums_q if has_same_sums else next(more)
    table = 0 if has_no_table else next(more)
    out = make_output() if has_no_output else call.out
    arrays = (q, k, v, address_of(out) if has_no_output else next(more))
    if not has_no_output and not plan.keeps_apart(arrays):
        return None
    lse = make_lse() if options.return_lse else None
    plan.start(arrays, (sums_q, sums_k), table, 0 if lse is None else address_of(lse), stream)
    return out if lse is None else (out, lse)


def _lse_shape(q: ArrayView) -> tuple[int, ...]:
    rows, heads, _ = q.shape
    return heads, rows


def _limits(side: str, max_length: Any, rows: int | None) -> Limits:
    """What the arrays and the caller allow; any sum of keys in pages, which sequences may share."""
    if max_length is not None:
        refuse(_length_violations(side, max_length))
    return Limits(max_length, rows)


def _sums(side: str, values: Any, limits: Limits, device: int | None, *, check: bool) -> Sums:
    """The running sums of one side, checked as far as they can be without waiting.

    Raises:
        ArgumentError: They are no batch for these rows; in the caller's words.
    """
    try:
        return Sums.of(None, values, device, limits, check=check)
    except ArgumentError as error:
        told = str(error).replace("cu_seqlens", f"cu_seqlens_{side}")
        told = told.replace("max_length", f"max_seqlen_{side}").replace("the packed array", side)
        raise ArgumentError(told) from None


def _longest(side: str, sums: Sums, max_length: int | None) -> int:
    """Rows of the longest sequence, or as many as the caller allows."""
    if max_length is not None:
        return max_length
    if sums.longest is None:
        raise ArgumentError(
            f"max_seqlen_{side} is None; cu_seqlens_{side} lies on a device, where the longest "
            f"sequence cannot be known without waiting. Pass max_seqlen_{side}=, check=True, or "
            f"cu_seqlens_{side} in host memory."
        )
    return sums.longest


def _length_violations(side: str, value: object) -> Iterator[Violation]:
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or not 0 <= value <= MAX_ROWS:  # type: ignore[operator]
        rule = "it must be an integer of 0 or more, and fit 32 bits"
        remedy = "Pass the rows of the longest sequence"
        yield Violation(f"max_seqlen_{side}", repr(value), rule, remedy)


def _batch_violations(sums_q: Sums, sums_k: Sums) -> Iterator[Violation]:
    if sums_q.batch < 1:
        yield Violation("cu_seqlens_q", "of no sequence", "there is one or more", "Skip the call")
    if sums_k.batch != sums_q.batch:
        rule = f"cu_seqlens_q describes {sums_q.batch}"
        remedy = "Pass a sequence of keys, which may be empty, for each of queries"
        yield Violation("cu_seqlens_k", f"of {sums_k.batch} sequences", rule, remedy)
