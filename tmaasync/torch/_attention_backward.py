"""``tmaasync::attention_backward``, its varlen form, and their autograd functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tmaasync import ops
from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError
from tmaasync.ops._flash.backward import MAX_HEAD_DIM
from tmaasync.ops._flash.gradients import GRADIENTS, Gradients
from tmaasync.ops._flash.operands import Operands, Scores
from tmaasync.torch._attention_options import (
    AXES,
    MASK,
    PACKED_AXES,
    dense_copy,
    mask_options,
    reachable,
    reached,
)
from tmaasync.torch._autocast import computed_type
from tmaasync.torch._registry import define, refuse_second_backward
from tmaasync.torch._stand_ins import stand_in_lengths, stand_ins

_TYPES = (torch.bfloat16, torch.float16)
_TORCHS = "torch.nn.functional.scaled_dot_product_attention"


def has_backward(q: Any) -> bool:
    """Return whether the kernels have gradients for this type and head_dim."""
    return computed_type(q) in _TYPES and q.shape[-1] <= MAX_HEAD_DIM


# --- operators ----------------------------------------------------------------------------------


def _run(*tensors: Any, deterministic: bool = False, **options: Any) -> Any:
    given = (*(reachable(one) for one in tensors[:-1]), tensors[-1].contiguous())
    return ops.attention_backward(*given, deterministic=deterministic, **mask_options(**options))


def _run_varlen(*given: Any, deterministic: bool = False, **options: Any) -> Any:
    tensors, lse, sequences = given[:5], given[5], given[6:]
    moved = (*(reachable(one) for one in tensors), lse.contiguous())
    return ops.varlen_attention_backward(
        *moved, *sequences, deterministic=deterministic, **mask_options(**options)
    )


def _fake(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    del deterministic
    views = stand_ins(dout=dout, q=q, k=k, v=v, out=out, lse=lse)
    if views is not None:
        checked_gradients(views, AXES, options)
    return tuple(one.new_empty(one.shape) for one in (q, k, v))


def _fake_varlen(  # noqa: PLR0913 - the arguments of the operator
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    del deterministic
    views = stand_ins(dout=dout, q=q, k=k, v=v, out=out, lse=lse)
    arrays = stand_ins(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if views is not None and arrays is not None:
        operands = checked_gradients(views, PACKED_AXES, options)
        stand_in_lengths(**arrays, longest=(max_seqlen_q, max_seqlen_k)).of(operands)
    return tuple(one.new_empty(one.shape) for one in (q, k, v))


def checked_gradients(views: dict[str, ArrayView], axes: str, options: dict[str, Any]) -> Operands:
    """Check tensors and mask as the operations do, in the same order."""
    *tensors, lse = views.values()
    given = (*map(reached, tensors), dense_copy(lse))
    gradients = Gradients.of(given, (None,) * len(GRADIENTS), axes)
    Scores.of(gradients.views["q"].shape[-1], **mask_options(**options))
    return gradients.operands


_SAVED = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse"
_SEQUENCES = (
    "Tensor cu_seqlens_q, Tensor? cu_seqlens_k=None, SymInt? max_seqlen_q=None, "
    "SymInt? max_seqlen_k=None"
)
_OPTIONS = f"*, {MASK}, bool deterministic=False"
_GRADIENTS = "(Tensor, Tensor, Tensor)"

define(
    "attention_backward", f"{_SAVED}, {_OPTIONS}", _run, _fake, returns=_GRADIENTS,
    other_returns=None,
)  # fmt: skip
define(
    "varlen_attention_backward", f"{_SAVED}, {_SEQUENCES}, {_OPTIONS}", _run_varlen, _fake_varlen,
    returns=_GRADIENTS, other_returns=None,
)  # fmt: skip

# --- autograd -----------------------------------------------------------------------------------


def save(ctx: Any, results: Any, q: Any, k: Any, v: Any, *scales: Any, **options: Any) -> None:
    """Save the tensors and options that the backward needs."""
    del scales
    out, lse = results
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse)
    ctx.options = options


def save_varlen(  # noqa: PLR0913 - the arguments of the operator
    ctx: Any,
    results: Any,
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
) -> None:
    del page_table, scales
    out, lse = results
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    ctx.lengths = (max_seqlen_q, max_seqlen_k)
    ctx.options = options


def check(needs: Sequence[bool], q: Any, k: Any, v: Any, *scales: Any, **options: Any) -> None:
    """Reject arguments without a backward."""
    del needs, k, v, options
    _require_backward(q, scales)


def check_varlen(
    needs: Sequence[bool], q: Any, k: Any, v: Any, *sequences: Any, **options: Any
) -> None:
    del needs, k, v, options
    _require_backward(q, sequences[_PAGE_TABLE:])


_PAGE_TABLE = 4  # index after cumulative and maximum lengths
_OTHERS_OF_VARLEN = _PAGE_TABLE + 4  # including the page table and three scales


def _require_backward(q: Any, lacking: Sequence[Any]) -> None:
    """Reject a type, head_dim or argument, such as scales or pages, without a backward."""
    if not has_backward(q) or any(one is not None for one in lacking):
        raise ArgumentError.broken(
            "q",
            f"{q.dtype} with {q.shape[-1]} columns and a tensor requires grad",
            f"attention has a backward for bfloat16 and float16, up to {MAX_HEAD_DIM} "
            "columns, without scales or a page table",
            "Call it inside torch.no_grad(), or pass .detach()",
            verb="holds",
        )


def backward(ctx: Any, grad: Any, grad_of_lse: Any) -> tuple[Any, ...]:
    del grad_of_lse  # the log-sum-exp is not differentiable
    refuse_second_backward("attention_with_lse", _TORCHS)
    operator = torch.ops.tmaasync.attention_backward.default
    return (*operator(grad, *ctx.saved_tensors, **options_of(ctx)), None, None, None)


def backward_varlen(ctx: Any, grad: Any, grad_of_lse: Any) -> tuple[Any, ...]:
    del grad_of_lse
    refuse_second_backward("varlen_attention_with_lse", _TORCHS)
    operator = torch.ops.tmaasync.varlen_attention_backward.default
    found = operator(grad, *ctx.saved_tensors, *ctx.lengths, **options_of(ctx))
    return (*found, *[None] * _OTHERS_OF_VARLEN)


def options_of(ctx: Any) -> dict[str, Any]:
    """Return the options of a backward operator."""
    if torch.are_deterministic_algorithms_enabled():
        return {**ctx.options, "deterministic": True}
    options: dict[str, Any] = ctx.options
    return options
