"""Attention by the signatures of torch and of the flash_attn package."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from tmaasync.errors import ArgumentError, Violation
from tmaasync.torch._attention import attention, varlen_attention
from tmaasync.torch._attention_backward import has_backward

__all__ = [
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "scaled_dot_product_attention",
]

_ALIGNED_COLUMNS = 8  # 16 bytes
_NO_BIAS = "the kernels add no bias or mask to the scores"
_FALL_BACK = "Pass fallback=True, which calls torch.nn.functional.scaled_dot_product_attention"
_TYPES = (torch.bfloat16, torch.float16)
_MAX_HEAD_DIM = 256


# --- torch.nn.functional.scaled_dot_product_attention -------------------------------------------


def scaled_dot_product_attention(  # noqa: PLR0913 - torch's parameters
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    fallback: bool = False,
) -> Any:
    """Compute what ``torch.nn.functional.scaled_dot_product_attention`` computes.

    The layout and the alignment of the causal mask are torch's: [batch, heads, positions, head_dim]
    and top left. Tensors that TMA cannot reach are copied. There is no backward.

    Args:
        query: [batch, heads, positions, head_dim] or [batch, positions, head_dim], bfloat16 or
            float16, head_dim up to 256.
        key: [batch, kv_heads, keys, head_dim].
        value: As key.
        attn_mask: None; the kernels take no mask.
        dropout_p: 0; the kernels have no dropout.
        is_causal: Whether query i sees keys up to i.
        scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        enable_gqa: Whether key and value may have fewer heads, a divisor of the heads of query.
        fallback: Whether to call torch's function for what the kernels lack, a backward included.
            Without it, this is refused.

    Returns:
        The output, with the shape of query.

    Raises:
        ArgumentError: What the kernels lack; everything is listed.

    >>> q = torch.ones(1, 2, 3, 16).half()
    >>> scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([1, 2, 3, 16])
    """
    tensors = {"query": query, "key": key, "value": value}
    found = [
        *_lacking_options(attn_mask, dropout_p, scale),
        *_lacking_types(tensors),
        *_lacking_shapes(query, key, value, enable_gqa=enable_gqa),
    ]
    if found and fallback:
        attend = torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return attend(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, **options)
    ArgumentError.raise_for(found)
    return _attend_heads_first(query, key, value, is_causal=is_causal, scale=scale)


def _lacking_options(attn_mask: Any, dropout_p: float, scale: float | None) -> Iterator[Violation]:
    if attn_mask is not None:
        yield Violation("attn_mask", f"of shape {tuple(attn_mask.shape)}", _NO_BIAS, _FALL_BACK)
    if dropout_p:
        yield Violation("dropout_p", dropout_p, "the kernels have no dropout", _FALL_BACK)
    if scale is not None and not 0 < scale < math.inf:
        yield Violation("scale", scale, "it must be a finite number above 0", _FALL_BACK)


def _lacking_types(tensors: dict[str, Any]) -> Iterator[Violation]:
    types = {tensor.dtype for tensor in tensors.values()}
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES or len(types) > 1:
            rule = "the kernels multiply bfloat16 or float16, one type for all"
            yield Violation(f"{name}.dtype", tensor.dtype, rule, _FALL_BACK)
        if tensor.requires_grad and torch.is_grad_enabled() and not has_backward(tensor):
            rule = "there is no backward for it, so its gradient would be lost"
            remedy = f"Call it inside torch.no_grad(), pass its .detach(), or p{_FALL_BACK[1:]}"
            yield Violation(name, "a tensor that requires grad, in grad mode", rule, remedy)


def _lacking_shapes(query: Any, key: Any, value: Any, *, enable_gqa: bool) -> Iterator[Violation]:
    shape = tuple(key.shape)
    if value.shape != key.shape:
        rule = f"key has shape {shape}, and each key has a value of as many columns"
        yield Violation("value.shape", tuple(value.shape), rule, _FALL_BACK)
    if query.ndim not in (3, 4) or key.ndim != query.ndim or key.shape[0] != query.shape[0]:
        rule = f"query has shape {tuple(query.shape)}; both have 3 or 4 dimensions, and one batch"
        yield Violation("key.shape", shape, rule, _FALL_BACK)
        return
    if key.shape[-1] != query.shape[-1] or key.shape[-1] > _MAX_HEAD_DIM:
        rule = f"query has {query.shape[-1]} columns; both have as many, up to {_MAX_HEAD_DIM}"
        yield Violation("key.shape[-1]", key.shape[-1], rule, _FALL_BACK)
    if 0 in query.shape or 0 in key.shape:
        rule = f"query has shape {tuple(query.shape)}; neither may be empty"
        yield Violation("key.shape", shape, rule, _FALL_BACK)
    elif query.ndim == 4:
        yield from _lacking_heads(query.shape[1], key.shape[1], enable_gqa=enable_gqa)


def _lacking_heads(heads: int, kv_heads: int, *, enable_gqa: bool) -> Iterator[Violation]:
    if heads != kv_heads and not enable_gqa:
        rule, remedy = f"query has {heads} heads", "For GQA or MQA pass enable_gqa=True"
        yield Violation("key.shape[1]", kv_heads, rule, remedy)
    elif heads % kv_heads:
        rule = f"query has {heads} heads, which must be a multiple"
        yield Violation("key.shape[1]", kv_heads, rule, "Pass a divisor of the heads of query")


def _attend_heads_first(
    query: Any, key: Any, value: Any, *, is_causal: bool, scale: float | None
) -> Any:
    tensors = (query, key, value)
    if query.ndim == 3:
        tensors = tuple(one[:, None] for one in tensors)
    q, k, v = (one.transpose(1, 2) for one in tensors)
    causal = "top_left" if is_causal else False
    out = _attend(q, k, v, scale=scale, causal=causal).transpose(1, 2)
    return out[:, 0] if query.ndim == 3 else out


def _attend(q: Any, k: Any, v: Any, *, scale: float | None, **options: Any) -> Any:
    """Attend with any head_dim: it is padded with zeros, which change no score."""
    head_dim = q.shape[-1]
    scale = head_dim**-0.5 if scale is None else scale
    q, k, v = (_padded(one) for one in (q, k, v))
    results = attention(q, k, v, scale=scale, **options)
    if isinstance(results, tuple):
        return _columns(results[0], head_dim), results[1]
    return _columns(results, head_dim)


def _columns(out: Any, head_dim: int) -> Any:
    return out if out.shape[-1] == head_dim else out[..., :head_dim]


def _padded(tensor: Any) -> Any:
    """Return the tensor with rows of a multiple of 16 bytes."""
    extra = -tensor.shape[-1] % _ALIGNED_COLUMNS
    return torch.nn.functional.pad(tensor, (0, extra)) if extra else tensor


# --- flash_attn ---------------------------------------------------------------------------------


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
    """Compute what ``flash_attn.flash_attn_func`` computes; its backward up to 128 columns.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16 or float16, head_dim up to 256.
        k: [batch, keys, kv_heads, head_dim].
        v: As k.
        dropout_p: 0; the kernels have no dropout.
        softmax_scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        causal: Whether a query sees no keys after its own; the last query is aligned with the last
            key.
        window_size: Keys that a query sees (before, after) its own; -1 is no limit.
        softcap: Scores become ``softcap * tanh(score / softcap)``; 0 leaves them as they are.
        alibi_slopes: None; the kernels have no ALiBi.
        deterministic: Whether the backward gives the same bits every time, as the forward does.
        return_attn_probs: Whether to return the log-sum-exp too.

    Returns:
        The output; with ``return_attn_probs`` a tuple of it, the log-sum-exp, float32
        [batch, heads, positions], and None for the probabilities.

    Raises:
        ArgumentError: An argument that the kernels do not have; every one is listed.
        ArrayTypeError: A type that the kernels do not have.
    """
    ArgumentError.raise_for(_lacking_flash(dropout_p, alibi_slopes))
    mask = _mask(causal, window_size, softcap)
    options = {**mask, "return_lse": return_attn_probs, "deterministic": deterministic}
    results = _attend(q, k, v, scale=softmax_scale, **options)
    return (*results, None) if return_attn_probs else results


def flash_attn_varlen_func(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
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
    """Compute what ``flash_attn.flash_attn_varlen_func`` computes; its backward as the other's.

    Args:
        q: [rows, heads, head_dim], bfloat16 or float16, head_dim up to 256.
        k: [key_rows, kv_heads, head_dim]; with ``block_table`` [blocks, block_size, kv_heads,
            head_dim], head_dim a multiple of 8.
        v: As k.
        cu_seqlens_q: Cumulative lengths of the sequences in q, int32.
        cu_seqlens_k: The same for k.
        max_seqlen_q: Rows of the longest sequence in q.
        max_seqlen_k: The same for k.
        dropout_p: As in `flash_attn_func`.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`, for each sequence.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        alibi_slopes: As in `flash_attn_func`.
        deterministic: As in `flash_attn_func`.
        return_attn_probs: As in `flash_attn_func`.
        block_table: The blocks of each sequence's keys, [sequences, blocks_per_sequence], int32.

    Returns:
        The output; with ``return_attn_probs`` a tuple of it, the log-sum-exp, float32
        [heads, rows], and None for the probabilities.

    Raises:
        ArgumentError: An argument that the kernels do not have; every one is listed.
        ArrayTypeError: A type that the kernels do not have.
    """
    ArgumentError.raise_for(_lacking_flash(dropout_p, alibi_slopes))
    head_dim = q.shape[-1]
    lengths = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
    if block_table is None:
        q, k, v = (_padded(one) for one in (q, k, v))
    results = varlen_attention(
        *(q, k, v, *lengths),
        scale=head_dim**-0.5 if softmax_scale is None else softmax_scale,
        page_table=block_table,
        return_lse=return_attn_probs,
        deterministic=deterministic,
        **_mask(causal, window_size, softcap),
    )
    if return_attn_probs:
        return _columns(results[0], head_dim), results[1], None
    return _columns(results, head_dim)


def flash_attn_with_kvcache(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Compute what ``flash_attn.flash_attn_with_kvcache`` computes, but for rotary embeddings.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16 or float16, head_dim a multiple of 8.
        k_cache: [cache_batch, cache_length, kv_heads, head_dim]; with ``block_table`` [blocks,
            block_size, kv_heads, head_dim]. The second dimension is a multiple of 8.
        v_cache: As k_cache.
        k: New keys, [batch, new, kv_heads, head_dim], written into the cache after
            ``cache_seqlens`` keys, before the attention.
        v: As k.
        rotary_cos: None; apply rotary embeddings before the call.
        rotary_sin: None.
        cache_seqlens: Keys of each sequence in the cache: an int, or an int32 tensor [batch]. By
            default the whole cache.
        cache_batch_idx: The entry of the cache that belongs to each sequence; not with
            ``block_table``.
        cache_leftpad: None; the keys of a sequence start where its cache starts.
        block_table: The blocks of each sequence, [batch, blocks_per_sequence], int32.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        rotary_interleaved: Ignored, as there are no rotary embeddings.
        alibi_slopes: As in `flash_attn_func`.
        num_splits: Ignored; the number of splits is chosen by the operation.
        return_softmax_lse: Whether to return the log-sum-exp too.

    Returns:
        The output; with ``return_softmax_lse`` a pair of it and the log-sum-exp, float32
        [batch, heads, positions].

    Raises:
        ArgumentError: An argument that the kernels do not have; every one is listed.
        ArrayTypeError: A type that the kernels do not have.
    """
    del rotary_interleaved, num_splits
    given = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_leftpad": cache_leftpad}
    ArgumentError.raise_for([*_lacking_flash(0.0, alibi_slopes), *_lacking_cache(given)])
    batch, positions, heads, head_dim = q.shape
    table = _page_table(q, k_cache, cache_batch_idx, block_table)
    capacity = table.shape[1] * k_cache.shape[1]
    lengths = _lengths(q, cache_seqlens, capacity)
    if k is not None:
        _append(k_cache, k, table, lengths)
        _append(v_cache, v, table, lengths)
        lengths = lengths + k.shape[1]
    results = varlen_attention(
        *(q.reshape(batch * positions, heads, head_dim), k_cache, v_cache),
        torch.arange(batch + 1, dtype=torch.int32, device=q.device) * positions,
        torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
        *(positions, capacity),
        scale=softmax_scale,
        page_table=table,
        return_lse=return_softmax_lse,
        **_mask(causal, window_size, softcap),
    )
    if not return_softmax_lse:
        return results.view(q.shape)
    out, lse = results
    return out.view(q.shape), lse.view(heads, batch, positions).transpose(0, 1)


def _mask(causal: bool, window_size: tuple[int, int], softcap: float) -> dict[str, Any]:
    left, right = (None if side < 0 else side for side in window_size)
    window = None if left is right is None else (left, right)
    return {"causal": causal, "window": window, "softcap": softcap or None}


def _lacking_flash(dropout_p: float, alibi_slopes: Any) -> Iterator[Violation]:
    if dropout_p:
        remedy = "Pass 0, or call flash_attn's own function"
        yield Violation("dropout_p", dropout_p, "the kernels have no dropout", remedy)
    if alibi_slopes is not None:
        shape = f"of shape {tuple(alibi_slopes.shape)}"
        yield Violation("alibi_slopes", shape, _NO_BIAS, "Call flash_attn's own function")


def _lacking_cache(given: dict[str, Any]) -> Iterator[Violation]:
    remedies = {
        "rotary_cos": "Rotate q and k before the call",
        "rotary_sin": "Rotate q and k before the call",
        "cache_leftpad": "Start the keys of each sequence at the start of its cache",
    }
    for name, value in given.items():
        if value is not None:
            rule = "the kernels do not take it"
            yield Violation(name, f"of shape {tuple(value.shape)}", rule, remedies[name])


def _page_table(q: Any, k_cache: Any, cache_batch_idx: Any, block_table: Any) -> Any:
    """Return the page table of a cache; without blocks, each sequence's cache is one page."""
    if block_table is not None:
        return block_table
    entries = cache_batch_idx
    if entries is None:
        entries = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    return entries.to(torch.int32)[:, None].contiguous()


def _lengths(q: Any, cache_seqlens: Any, capacity: int) -> Any:
    if isinstance(cache_seqlens, torch.Tensor):
        return cache_seqlens
    length = capacity if cache_seqlens is None else cache_seqlens
    return torch.full((q.shape[0],), length, dtype=torch.int32, device=q.device)


def _append(cache: Any, new: Any, table: Any, lengths: Any) -> None:
    """Write new keys or values of each sequence into its pages, after the ones that it has."""
    positions = lengths[:, None] + torch.arange(new.shape[1], device=new.device)
    pages = table.gather(1, (positions // cache.shape[1]).long()).long()
    cache[pages, positions % cache.shape[1]] = new
