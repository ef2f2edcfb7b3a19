"""Drop-in attention functions with the signatures of the flash_attn package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tmaasync._kinds import check_flags, is_integer, is_number, shown
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._flash.operands import positive_violations
from tmaasync.torch._any_head_dim import attend, attend_packed
from tmaasync.torch._attention import varlen_attention
from tmaasync.torch._plain import is_symbolic
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none


def flash_attn_func(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute ``flash_attn.flash_attn_func``; its backward needs head_dim up to 128.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16 or float16, head_dim up to 256.
        k: [batch, keys, kv_heads, head_dim].
        v: As k.
        dropout_p: 0; the kernels have no dropout.
        softmax_scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        causal: Whether to apply a causal mask, with the last query aligned with the last key.
        window_size: Sliding window (left, right): keys that a query attends to before and after its
            own; -1 means no limit.
        softcap: Scores become ``softcap * tanh(score / softcap)``; 0 or less means no softcap.
        alibi_slopes: None; the kernels have no ALiBi.
        deterministic: Whether the backward is deterministic; the forward always is.
        return_attn_probs: Whether to return the log-sum-exp too.

    Returns:
        The output; with ``return_attn_probs`` a tuple of the output, the log-sum-exp, float32
        [batch, heads, positions], and None for the probabilities.

    Raises:
        ArgumentError: An argument that the kernels do not support; all are listed.
        ArrayTypeError: A type that the kernels do not support.
    """
    require_tensors(q=q, k=k, v=v)
    check_flags(return_attn_probs=return_attn_probs)
    ArgumentError.raise_for(unsupported_options(dropout_p, alibi_slopes))
    mask = mask_options(causal, window_size, softcap, softmax_scale)
    options = {**mask, "return_lse": return_attn_probs, "deterministic": deterministic}
    results = attend(q, k, v, **options)
    return (*results, None) if return_attn_probs else results


def flash_attn_varlen_func(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Compute ``flash_attn.flash_attn_varlen_func``; the backward is as in `flash_attn_func`.

    So are the options; ``causal`` applies to each sequence.

    Args:
        q: [rows, heads, head_dim], bfloat16 or float16, head_dim up to 256.
        k: [key_rows, kv_heads, head_dim]; with ``block_table`` [blocks, block_size, kv_heads,
            head_dim], head_dim a multiple of 8.
        v: As k.
        cu_seqlens_q: Cumulative lengths of the sequences in q, int32.
        cu_seqlens_k: The same for k.
        max_seqlen_q: Rows of the longest sequence in q; None if ``cu_seqlens_q`` is in host memory.
        max_seqlen_k: The same for k.
        block_table: The blocks of each sequence's keys, [sequences, blocks_per_sequence], int32.

    Returns:
        The output; with ``return_attn_probs`` a tuple of the output, the log-sum-exp, float32
        [heads, rows], and None for the probabilities.

    Raises:
        ArgumentError: An argument that the kernels do not support; all are listed.
        ArrayTypeError: A type that the kernels do not support.
    """
    require_tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    require_tensors_or_none(block_table=block_table)
    check_flags(return_attn_probs=return_attn_probs)
    ArgumentError.raise_for(unsupported_options(dropout_p, alibi_slopes))
    given = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    lengths = (cu_seqlens_q, cu_seqlens_k, *(_count(*one) for one in given.items()))
    mask = mask_options(causal, window_size, softcap, softmax_scale)
    options = {**mask, "return_lse": return_attn_probs, "deterministic": deterministic}
    if block_table is None:
        results = attend_packed(q, k, v, *lengths, **options)
    else:
        options["page_table"] = block_table
        results = varlen_attention(q, k, v, *lengths, **options)
    return (*results, None) if return_attn_probs else results


def _count(name: str, value: Any) -> Any:
    """Return a maximum length, which may be a tensor of one integer, or a symbol."""
    if value is None or isinstance(value, (int, torch.SymInt)):
        return value
    if isinstance(value, torch.Tensor) or is_integer(value):
        return int(value)
    rule = "it must be the rows of the longest sequence"
    raise ArgumentError.broken(name, shown(value), rule, "Pass an int, or None")


def mask_options(
    causal: bool, window_size: Any, softcap: Any, softmax_scale: Any
) -> dict[str, Any]:
    is_pair = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    if not is_pair or not all(side is None or is_integer(side) for side in window_size):
        rule = "it must be the numbers of keys (before, after) a query's own, -1 for no limit"
        violation = Violation(
            "window_size", shown(window_size), rule, "Pass (-1, -1) for no window"
        )
        raise ArgumentError.of([violation])
    left, right = (None if side is None or side < 0 else side for side in window_size)
    window = None if left is right is None else (left, right)
    if not is_symbolic(softmax_scale):
        remedy = "Leave it out for the default"
        ArgumentError.raise_for(positive_violations("softmax_scale", softmax_scale, remedy))
    is_capped = not is_number(softcap) or not softcap <= 0
    softcap = softcap if is_capped else None
    return {"causal": causal, "scale": softmax_scale, "window": window, "softcap": softcap}


def unsupported_options(dropout_p: float, alibi_slopes: Any) -> Iterator[Violation]:
    if dropout_p:
        remedy = "Pass 0, or call flash_attn's own function"
        yield Violation("dropout_p", dropout_p, "the kernels have no dropout", remedy)
    if alibi_slopes is not None:
        require_tensors(alibi_slopes=alibi_slopes)
        shape = f"of shape {tuple(alibi_slopes.shape)}"
        rule = "the kernels add no bias to the scores"
        yield Violation("alibi_slopes", shape, rule, "Call flash_attn's own function")
