"""``tmaasync::attention_backward`` and the varlen form, and the autograd of attention over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tmaasync import ops
from tmaasync.errors import ArgumentError
from tmaasync.ops._flash.backward import MAX_HEAD_DIM
from tmaasync.torch._attention_options import MASK, mask_options, reachable
from tmaasync.torch._registry import define, refuse_second_backward

__all__ = ["has_backward", "register_autograd"]

_TYPES = (torch.bfloat16, torch.float16)
_TORCHS = "torch.nn.functional.scaled_dot_product_attention"


def has_backward(q: Any) -> bool:
    """Whether the kernels have gradients for this type and head_dim."""
    return q.dtype in _TYPES and q.shape[-1] <= MAX_HEAD_DIM


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


def _fake(dout: Any, q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
    del dout, others, options
    return tuple(one.new_empty(one.shape) for one in (q, k, v))


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
    "varlen_attention_backward", f"{_SAVED}, {_SEQUENCES}, {_OPTIONS}", _run_varlen, _fake,
    returns=_GRADIENTS, other_returns=None,
)  # fmt: skip

# --- autograd -----------------------------------------------------------------------------------


def _save(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    """Keep what the backward reads, and refuse what has none."""
    q, k, v, *others = inputs
    out, lse = output
    _check(q, others[:3])
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse)
    ctx.options = keyword_only_inputs


def _save_varlen(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    q, k, v, cu_seqlens_q, *others = inputs
    missing = [None] * (4 - len(others))
    cu_seqlens_k, *lengths = others + missing
    out, lse = output
    _check(q, lengths[2:])
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    ctx.lengths = lengths[:2]
    ctx.options = keyword_only_inputs


def _check(q: Any, lacking: Sequence[Any]) -> None:
    """Refuse a type, a head_dim or an argument, such as scales or pages, without a backward."""
    if not has_backward(q) or any(one is not None for one in lacking):
        raise ArgumentError(
            f"q holds {q.dtype} with {q.shape[-1]} columns and a tensor requires grad; attention "
            f"has a backward for bfloat16 and float16, up to {MAX_HEAD_DIM} columns, without "
            "scales or a page table. Call it inside torch.no_grad(), or pass .detach()."
        )


def _backward(ctx: Any, grad: Any, grad_of_lse: Any) -> tuple[Any, ...]:
    del grad_of_lse  # the log-sum-exp is not differentiable
    refuse_second_backward("attention_with_lse", _TORCHS)
    found = torch.ops.tmaasync.attention_backward(grad, *ctx.saved_tensors, **_options(ctx))
    return (*found, *[None] * (len(ctx.needs_input_grad) - 3))


def _backward_varlen(ctx: Any, grad: Any, grad_of_lse: Any) -> tuple[Any, ...]:
    del grad_of_lse
    refuse_second_backward("varlen_attention_with_lse", _TORCHS)
    found = torch.ops.tmaasync.varlen_attention_backward(
        grad, *ctx.saved_tensors, *ctx.lengths, **_options(ctx)
    )
    return (*found, *[None] * (len(ctx.needs_input_grad) - 3))


def _options(ctx: Any) -> dict[str, Any]:
    deterministic = ctx.options["deterministic"] or torch.are_deterministic_algorithms_enabled()
    return {**ctx.options, "deterministic": deterministic}


def register_autograd() -> None:
    """Register the backwards, once the operators of the forward are defined."""
    for name, backward, save in (
        ("attention_with_lse", _backward, _save),
        ("varlen_attention_with_lse", _backward_varlen, _save_varlen),
    ):
        torch.library.register_autograd(f"tmaasync::{name}", backward, setup_context=save)
