"""``tmaasync::attention``, ``tmaasync::varlen_attention``, and both with the log-sum-exp."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync import ops
from tmaasync._kinds import check_flags
from tmaasync.errors import ArgumentError
from tmaasync.ops._flash.float8 import given_scales, scales_of
from tmaasync.ops._flash.operands import Operands, Results, Scores, side_limit, window_violations
from tmaasync.ops._flash.pages import PageTable
from tmaasync.ops._flash.sequences import check_longest
from tmaasync.torch._attention_backward import (
    backward,
    backward_varlen,
    check,
    check_varlen,
    save,
    save_varlen,
)
from tmaasync.torch._attention_options import (
    AXES,
    MASK,
    PACKED_AXES,
    PAGE_AXES,
    mask_options,
    reachable,
    reached,
)
from tmaasync.torch._plain import NUMBERS_OR_NONE, is_symbolic
from tmaasync.torch._registry import define, register_autocast, register_backward
from tmaasync.torch._stand_ins import stand_in_lengths, stand_ins
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none

_Window = tuple[int | None, int | None]
_FLOAT8 = torch.float8_e4m3fn
_SCALES = ("scales[0]", "scales[1]", "scales[2]")


def attention(  # noqa: PLR0913 - the parameters of attention
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    window: _Window | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    scales: tuple[Any, Any, Any] | None = None,
    deterministic: bool = False,
    out: Any = None,
) -> Any:
    """Compute ``softmax(scale * q @ k.T + mask) @ v`` for every head.

    This is `tmaasync.ops.attention` as the operator ``torch.ops.tmaasync.attention``, or
    ``attention_with_lse`` with ``return_lse`` or if an input requires grad. It has a backward for
    bfloat16 and float16 with head_dim up to 128, but not for the log-sum-exp; gradients of queries
    with a log-sum-exp above 65536 are NaN (`tmaasync.ops.attention_backward`). The layout is
    [batch, positions, heads, head_dim]. For torch's layout, [batch, heads, positions, head_dim],
    call `scaled_dot_product_attention`, or pass ``q.transpose(1, 2)`` and so on. Tensors that TMA
    cannot read, because a stride or the address is not a multiple of 16 bytes, are copied.

    Args:
        q: [batch, positions, heads, head_dim].
        k: [batch, keys, kv_heads, head_dim].
        v: As k.
        causal: As in `tmaasync.ops.attention`. The operator takes a bool, and
            ``causal_alignment``, ``"bottom_right"`` or ``"top_left"``.
        scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        window: Sliding window (left, right): keys that a query attends to before and after its own.
            The operator takes ``window_left`` and ``window_right``.
        softcap: Scores become ``softcap * tanh(score / softcap)``.
        return_lse: Whether to return the log-sum-exp of the scores too.
        scales: Descale factors of float8 q, k and v: float32 tensors, or None for 1. The operator
            takes ``scale_q``, ``scale_k`` and ``scale_v``.
        deterministic: Whether the backward gives bitwise equal results in every call; also enabled
            by ``torch.use_deterministic_algorithms``.
        out: The output, a tensor like q. With it there is no backward.

    Returns:
        The output; with ``return_lse`` the pair (output, log-sum-exp), log-sum-exp as float32
        [batch, heads, positions].
    """
    require_tensors(q=q, k=k, v=v)
    require_tensors_or_none(out=out)
    if not type(return_lse) is type(deterministic) is bool:
        check_flags(return_lse=return_lse, deterministic=deterministic)
    operators = torch.ops.tmaasync
    mask = mask_arguments(causal, scale, window, softcap)
    given: tuple[Any, ...] = (q, k, v)
    if scales is not None:
        given_scales(scales)  # as many as there are operands
        require_tensors_or_none(**dict(zip(_SCALES, scales, strict=True)))
        given = (q, k, v, *scales)
    if deterministic and out is None:
        results = operators.attention_with_lse.default(*given, **mask, deterministic=True)
        return results if return_lse else results[0]
    operator = operators.attention_with_lse if return_lse else operators.attention
    return _called(operator, given, mask, out, return_lse=return_lse)


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
    window: _Window | None = None,
    softcap: float | None = None,
    page_table: Any = None,
    return_lse: bool = False,
    scales: tuple[Any, Any, Any] | None = None,
    deterministic: bool = False,
    out: Any = None,
) -> Any:
    """Compute `attention` within each sequence of packed tensors.

    This is `tmaasync.ops.varlen_attention` as the operator ``torch.ops.tmaasync.varlen_attention``,
    or ``varlen_attention_with_lse`` with ``return_lse`` or if an input requires grad. It has the
    same backward as `attention`, but not with a paged KV cache. Tensors that TMA cannot read are
    copied, except a paged KV cache, which is rejected. Options are as in `attention`.

    Args:
        q: [rows, heads, head_dim].
        k: [key_rows, kv_heads, head_dim]; with ``page_table`` [pages, page_size, kv_heads,
            head_dim].
        v: As k.
        cu_seqlens_q: Cumulative lengths of the sequences in q, a tensor of int32: 0 first, the
            total last.
        cu_seqlens_k: The same for k; by default ``cu_seqlens_q``.
        max_seqlen_q: Rows of the longest sequence in q; required if ``cu_seqlens_q`` is on a GPU.
        max_seqlen_k: The same for k.
        page_table: The pages of each sequence's keys, as in `tmaasync.ops.varlen_attention`.
        scales: As in `attention`; tensors of one element or of shape [sequences, kv_heads].
        out: The output, a tensor like q.

    Returns:
        The output; with ``return_lse`` the pair (output, log-sum-exp), log-sum-exp as float32
        [heads, rows]. Rows of the output after the last sequence are uninitialised.
    """
    require_tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q)
    require_tensors_or_none(cu_seqlens_k=cu_seqlens_k, page_table=page_table, out=out)
    if not type(return_lse) is type(deterministic) is bool:
        check_flags(return_lse=return_lse, deterministic=deterministic)
    if not (is_symbolic(max_seqlen_q) or is_symbolic(max_seqlen_k)):
        check_longest(max_seqlen_q, max_seqlen_k)
    operators = torch.ops.tmaasync
    lengths: tuple[Any, ...] = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, page_table)
    if scales is not None:
        given_scales(scales)  # as many as there are operands
        require_tensors_or_none(**dict(zip(_SCALES, scales, strict=True)))
        lengths += tuple(scales)
    mask = mask_arguments(causal, scale, window, softcap)
    if deterministic and out is None:
        operator = operators.varlen_attention_with_lse.default
        results = operator(q, k, v, *lengths, **mask, deterministic=True)
        return results if return_lse else results[0]
    operator = operators.varlen_attention_with_lse if return_lse else operators.varlen_attention
    return _called(operator, (q, k, v, *lengths), mask, out, return_lse=return_lse)


def mask_arguments(
    causal: bool | str, scale: float | None, window: _Window | None, softcap: float | None
) -> dict[str, Any]:
    """Return the operator's non-default arguments: each argument costs the dispatcher time."""
    is_plain = type(scale) in NUMBERS_OR_NONE and type(softcap) in NUMBERS_OR_NONE
    if not (is_plain and type(causal) is bool):
        Scores.of(1, causal, scale, window, softcap)
    mask: dict[str, Any] = {}
    if causal:
        mask["causal"] = True
    if isinstance(causal, str):
        mask["causal_alignment"] = causal
    if scale is not None:
        mask["scale"] = scale
    if window is not None:
        ArgumentError.raise_for(window_violations(window))
        mask["window_left"], mask["window_right"] = map(side_limit, window)
    if softcap is not None:
        mask["softcap"] = softcap
    return mask


def _called(
    operator: Any, given: tuple[Any, ...], mask: dict[str, Any], out: Any, *, return_lse: bool
) -> Any:
    if out is None:
        return operator.default(*given, **mask)
    lse = operator.out(*given, **mask, out=out)
    return (out, lse) if return_lse else out


# --- kernels and fake kernels -------------------------------------------------------------------


def _run_attention(
    q: Any,
    k: Any,
    v: Any,
    scale_q: Any = None,
    scale_k: Any = None,
    scale_v: Any = None,
    **options: Any,
) -> Any:
    out, return_lse = options.pop("out", None), options.pop("return_lse", False)
    scales = (scale_q, scale_k, scale_v)
    given = None if scale_q is scale_k is scale_v is None else scales
    mask = mask_options(**options)
    q, k, v = (reachable(one) for one in (q, k, v))
    return ops.attention(q, k, v, **mask, scales=given, return_lse=return_lse, out=out)


def _run_attention_with_lse(*given: Any, deterministic: bool = False, **options: Any) -> Any:
    del deterministic  # used by the backward only
    return _run_attention(*given, **options, return_lse=True)


def _fake_attention(  # noqa: PLR0913 - the arguments of the operator
    q: Any,
    k: Any,
    v: Any,
    scale_q: Any = None,
    scale_k: Any = None,
    scale_v: Any = None,
    *,
    out: Any = None,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    del deterministic
    views = stand_ins(q=q, k=k, v=v, out=out)
    scales = stand_ins(**dict(zip(_SCALES, (scale_q, scale_k, scale_v), strict=True)))
    if views is not None and scales is not None:
        target = views.pop("out")
        q_view, k_view, v_view = map(reached, views.values())
        operands = Operands.of(q_view, k_view, v_view, AXES, may_be_float8=True)
        if any(one is not None for one in scales.values()):
            scales_of(*given_scales(tuple(scales.values())), operands, len(k))
        Scores.of(operands.q.shape[-1], **mask_options(**options))
        Results(operands, target, return_lse=False)
    return q.new_empty(q.shape, dtype=torch.bfloat16 if q.dtype == _FLOAT8 else q.dtype)


def _fake_attention_with_lse(
    q: Any,
    k: Any,
    v: Any,
    scale_q: Any = None,
    scale_k: Any = None,
    scale_v: Any = None,
    **options: Any,
) -> Any:
    out = _fake_attention(q, k, v, scale_q, scale_k, scale_v, **options)
    batch, positions, heads, _ = q.shape
    return out, q.new_empty((batch, heads, positions), dtype=torch.float32)


def _run_varlen(  # noqa: PLR0913 - the arguments of the operator
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Any = None,
    *scales: Any,
    **options: Any,
) -> Any:
    out, return_lse = options.pop("out", None), options.pop("return_lse", False)
    q = reachable(q)
    if page_table is None:  # a paged KV cache is too large to copy in each call
        k, v = reachable(k), reachable(v)
    return ops.varlen_attention(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
        page_table=page_table,
        return_lse=return_lse,
        scales=None if all(one is None for one in scales) else scales,
        out=out,
        **mask_options(**options),
    )


def _run_varlen_with_lse(*given: Any, deterministic: bool = False, **options: Any) -> Any:
    del deterministic
    return _run_varlen(*given, **options, return_lse=True)


def fake_varlen(  # noqa: PLR0913 - the arguments of the operator
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Any = None,
    scale_q: Any = None,
    scale_k: Any = None,
    scale_v: Any = None,
    *,
    out: Any = None,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    """Check all arguments but the values of lengths and pages; return an output without values."""
    del deterministic
    views = stand_ins(q=q, k=k, v=v, out=out)
    scales = stand_ins(**dict(zip(_SCALES, (scale_q, scale_k, scale_v), strict=True)))
    arrays = stand_ins(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, page_table=page_table)
    if views is not None and arrays is not None and scales is not None:
        target, pages = views.pop("out"), arrays.pop("page_table")
        is_paged = pages is not None
        key_axes = PAGE_AXES if is_paged else PACKED_AXES
        q_view, k_view, v_view = (
            one if is_paged and name != "q" else reached(one) for name, one in views.items()
        )
        operands = Operands.of(q_view, k_view, v_view, PACKED_AXES, key_axes, may_be_float8=True)
        Scores.of(operands.q.shape[-1], **mask_options(**options))
        lengths = stand_in_lengths(**arrays, longest=(max_seqlen_q, max_seqlen_k))
        _, batch = lengths.of(operands, keys_are_packed=not is_paged)
        if is_paged:
            PageTable.of(pages, operands, batch)
        if any(one is not None for one in scales.values()):
            scales_of(*given_scales(tuple(scales.values())), operands, batch.size)
        Results(operands, target, return_lse=False)
    return q.new_empty(q.shape, dtype=torch.bfloat16 if q.dtype == _FLOAT8 else q.dtype)


def _fake_varlen_with_lse(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, *lengths: Any, **options: Any
) -> Any:
    out = fake_varlen(q, k, v, cu_seqlens_q, *lengths, **options)
    rows, heads, _ = q.shape
    return out, q.new_empty((heads, rows), dtype=torch.float32)


_PADDED = (
    "Tensor q, Tensor k, Tensor v, Tensor? scale_q=None, Tensor? scale_k=None, "
    f"Tensor? scale_v=None, *, {MASK}"
)
_PACKED = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor? cu_seqlens_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? page_table=None, "
    f"Tensor? scale_q=None, Tensor? scale_k=None, Tensor? scale_v=None, *, {MASK}"
)

_DETERMINISTIC = "bool deterministic=False"

define("attention", _PADDED, _run_attention, _fake_attention, is_differentiable=True)
define(
    "attention_with_lse",
    f"{_PADDED}, {_DETERMINISTIC}",
    _run_attention_with_lse,
    _fake_attention_with_lse,
    returns="(Tensor, Tensor)",
    other_returns="Tensor",
    is_differentiable=True,
)
define("varlen_attention", _PACKED, _run_varlen, fake_varlen, is_differentiable=True)
define(
    "varlen_attention_with_lse",
    f"{_PACKED}, {_DETERMINISTIC}",
    _run_varlen_with_lse,
    _fake_varlen_with_lse,
    returns="(Tensor, Tensor)",
    other_returns="Tensor",
    is_differentiable=True,
)
register_backward(
    "attention_with_lse",
    _run_attention_with_lse,
    save,
    backward,
    check=check,
    first=("attention", _run_attention),
)
register_backward(
    "varlen_attention_with_lse",
    _run_varlen_with_lse,
    save_varlen,
    backward_varlen,
    check=check_varlen,
    first=("varlen_attention", _run_varlen),
)
for _name in ("attention", "varlen_attention"):
    register_autocast(_name, operands=3)
    register_autocast(f"{_name}_with_lse", operands=3)
