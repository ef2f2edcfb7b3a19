"""Attention with any head_dim up to 256, padded with zeros, which do not change the scores."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync.errors import ArgumentError
from tmaasync.torch._attention import attention, varlen_attention
from tmaasync.torch._autocast import computed_type


def attend(q: Any, k: Any, v: Any, *, scale: float | None, **options: Any) -> Any:
    """Call `attention`; v may have another head_dim than q and k, which the output has too.

    With no queries the output is empty, and gradients are zero.
    """
    if 0 in q.shape[:-1]:
        return _empty(q, k, v, return_lse=options.get("return_lse", False))
    scale = _scale(q, k, scale)
    results = attention(*_padded(q, k, v), scale=scale, **options)
    return _columns(results, v.shape[-1])


def attend_packed(
    q: Any, k: Any, v: Any, *lengths: Any, scale: float | None, **options: Any
) -> Any:
    """Call `varlen_attention`, as `attend` calls `attention`."""
    scale = _scale(q, k, scale)
    results = varlen_attention(*_padded(q, k, v), *lengths, scale=scale, **options)
    return _columns(results, v.shape[-1])


def _scale(q: Any, k: Any, scale: float | None) -> float:
    """Return the scale of the scores for the head_dim before padding.

    Raises:
        ArgumentError: head_dim of q and k differ, or are 0; padding would hide this.
    """
    head_dim = q.shape[-1] if q.dim() else 0
    if not head_dim or k.shape[-1:] != q.shape[-1:]:
        rule, remedy = f"q has shape {tuple(q.shape)}", "Pass q and k of one head_dim, 1 or more"
        raise ArgumentError.broken("k.shape", tuple(k.shape), rule, remedy)
    return head_dim**-0.5 if scale is None else scale


def _empty(q: Any, k: Any, v: Any, *, return_lse: bool) -> Any:
    # The output has no elements; adding the sums connects the tensors to autograd's graph.
    dtype = computed_type(q)
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    out = out + (q.sum() + k.sum() + v.sum()).to(dtype)
    if not return_lse:
        return out
    batch, positions, heads, _ = q.shape
    return out, q.new_zeros((batch, heads, positions), dtype=torch.float32)


def _padded(*tensors: Any) -> list[Any]:
    """Return the tensors padded to one head_dim, a multiple of 16 bytes."""
    step = TMA_ALIGNMENT // computed_type(tensors[0]).itemsize
    width = -(-max(one.shape[-1] for one in tensors) // step) * step
    pad = torch.nn.functional.pad
    return [
        pad(one, (0, width - one.shape[-1])) if one.shape[-1] < width else one for one in tensors
    ]


def _columns(results: Any, count: int) -> Any:
    out, *lse = results if isinstance(results, tuple) else (results,)
    out = out if out.shape[-1] == count else out[..., :count]
    return (out, *lse) if lse else out
