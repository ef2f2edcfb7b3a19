"""`scaled_dot_product_attention` with torch's signature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tmaasync._kinds import check_flags
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._flash.operands import MAX_HEAD_DIM, positive_violations
from tmaasync.torch._any_head_dim import attend
from tmaasync.torch._attention_backward import has_backward
from tmaasync.torch._autocast import computed_type
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none

_FALL_BACK = "Pass fallback=True, which calls torch.nn.functional.scaled_dot_product_attention"
_NO_MASK = "the kernels add no bias or mask to the scores"
_TYPES = (torch.bfloat16, torch.float16)


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
    """Compute ``torch.nn.functional.scaled_dot_product_attention``.

    The layout, [batch, heads, positions, head_dim], and the top-left causal alignment are torch's.
    Tensors that TMA cannot read are copied. With no queries the output is empty. The backward needs
    head_dim up to 128.

    Args:
        query: [batch, heads, positions, head_dim] or [batch, positions, head_dim], bfloat16 or
            float16, head_dim up to 256.
        key: [batch, kv_heads, keys, head_dim].
        value: As key.
        attn_mask: None; the kernels take no mask.
        dropout_p: 0; the kernels have no dropout.
        is_causal: Whether query i attends only to keys <= i.
        scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        enable_gqa: Whether key and value may have fewer heads, a divisor of the query heads.
        fallback: Whether to call torch's function for options that the kernels lack, including a
            backward. Otherwise they are rejected.

    Returns:
        The output, with the shape of query. Its memory layout is [batch, positions, heads,
        head_dim], like the output of torch's flash attention on a GPU.

    Raises:
        ArgumentError: The kernels lack an option; all are listed.
        ArrayTypeError: An argument is not a tensor.

    >>> q = torch.ones(1, 2, 3, 16).half()
    >>> scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([1, 2, 3, 16])
    """
    tensors = {"query": query, "key": key, "value": value}
    require_tensors(**tensors)
    require_tensors_or_none(attn_mask=attn_mask)
    check_flags(is_causal=is_causal, enable_gqa=enable_gqa, fallback=fallback)
    scale = float(scale) if isinstance(scale, torch.Tensor) else scale
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
        yield Violation("attn_mask", f"of shape {tuple(attn_mask.shape)}", _NO_MASK, _FALL_BACK)
    if dropout_p:
        yield Violation("dropout_p", dropout_p, "the kernels have no dropout", _FALL_BACK)
    yield from positive_violations("scale", scale, _FALL_BACK)


def _lacking_types(tensors: dict[str, Any]) -> Iterator[Violation]:
    types = [computed_type(tensor) for tensor in tensors.values()]
    for own, (name, tensor) in zip(types, tensors.items(), strict=True):
        if own not in _TYPES or own != types[0]:
            rule = "the kernels multiply bfloat16 or float16, one type for all"
            yield Violation(f"{name}.dtype", tensor.dtype, rule, _FALL_BACK)
        if tensor.requires_grad and torch.is_grad_enabled() and not has_backward(tensor):
            rule = "there is no backward for it, so its gradient would be lost"
            remedy = f"Call it inside torch.no_grad(), pass its .detach(), or p{_FALL_BACK[1:]}"
            yield Violation(name, "a tensor that requires grad, in grad mode", rule, remedy)


def _lacking_shapes(query: Any, key: Any, value: Any, *, enable_gqa: bool) -> Iterator[Violation]:
    if query.is_nested or key.is_nested or value.is_nested:
        rule = "the kernels take dense tensors, and packed ones in tmaasync.torch.varlen_attention"
        yield Violation("query, key or value", "nested", rule, _FALL_BACK)
        return
    shape = tuple(key.shape)
    if value.shape != key.shape:
        rule = f"key has shape {shape}, and each key has a value of as many columns"
        yield Violation("value.shape", tuple(value.shape), rule, _FALL_BACK)
    if query.ndim not in (3, 4) or key.ndim != query.ndim or key.shape[0] != query.shape[0]:
        rule = f"query has shape {tuple(query.shape)}; both have 3 or 4 dimensions, and one batch"
        yield Violation("key.shape", shape, rule, _FALL_BACK)
        return
    if key.shape[-1] != query.shape[-1] or key.shape[-1] > MAX_HEAD_DIM:
        rule = f"query has {query.shape[-1]} columns; both have as many, up to {MAX_HEAD_DIM}"
        yield Violation("key.shape[-1]", key.shape[-1], rule, _FALL_BACK)
    if 0 in query.shape[:-1]:
        return  # nothing to compute
    if 0 in (*key.shape[:-2], key.shape[-1]):
        rule = f"query has shape {tuple(query.shape)}; only the number of keys may be 0"
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
    out = attend(q, k, v, scale=scale, causal=causal).transpose(1, 2)
    return out[:, 0] if query.ndim == 3 else out
