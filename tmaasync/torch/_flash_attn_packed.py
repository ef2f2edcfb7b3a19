"""flash_attn's functions for queries, keys and values packed in one tensor."""

from __future__ import annotations

from typing import Any

from tmaasync.errors import ArgumentError
from tmaasync.torch._flash_attn import flash_attn_func, flash_attn_varlen_func
from tmaasync.torch._tensors import require_tensors


def flash_attn_qkvpacked_func(  # noqa: PLR0913 - the parameters of flash_attn
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Call `flash_attn_func` with the parts of ``qkv``, [batch, positions, 3, heads, head_dim].

    They are not copied. All other arguments, results and errors are as there.
    """
    q, k, v = _parts(3, "[batch, positions, 3, heads, head_dim]", qkv=qkv)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return flash_attn_func(q, k, v, *options, return_attn_probs)


def flash_attn_kvpacked_func(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Call `flash_attn_func` with the parts of ``kv``, [batch, keys, 2, kv_heads, head_dim].

    They are not copied. All other arguments, results and errors are as there.
    """
    k, v = _parts(2, "[batch, keys, 2, kv_heads, head_dim]", kv=kv, q=q)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return flash_attn_func(q, k, v, *options, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(  # noqa: PLR0913 - the parameters of flash_attn
    qkv: Any,
    cu_seqlens: Any,
    max_seqlen: int | None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Call `flash_attn_varlen_func` with the parts of ``qkv``, [rows, 3, heads, head_dim].

    They are not copied. ``cu_seqlens`` and ``max_seqlen`` hold for queries and keys. All other
    arguments, results and errors are as there.
    """
    q, k, v = _parts(3, "[rows, 3, heads, head_dim]", qkv=qkv, cu_seqlens=cu_seqlens)
    mask = (softmax_scale, causal, window_size, softcap, alibi_slopes)
    options: Any = (dropout_p, *mask, deterministic, return_attn_probs)
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *lengths, *options)


def flash_attn_varlen_kvpacked_func(  # noqa: PLR0913 - the parameters of flash_attn
    q: Any,
    kv: Any,
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
) -> Any:
    """Call `flash_attn_varlen_func` with the parts of ``kv``, [key_rows, 2, kv_heads, head_dim].

    They are not copied. All other arguments, results and errors are as there.
    """
    ends = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    k, v = _parts(2, "[key_rows, 2, kv_heads, head_dim]", kv=kv, q=q, **ends)
    mask = (softmax_scale, causal, window_size, softcap, alibi_slopes)
    options: Any = (dropout_p, *mask, deterministic, return_attn_probs)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return flash_attn_varlen_func(q, k, v, *lengths, *options)


def _parts(count: int, axes: str, **tensors: Any) -> Any:
    """Return the ``count`` parts of the first tensor, along the dimension before the heads."""
    require_tensors(**tensors)
    name, packed = next(iter(tensors.items()))
    if packed.dim() != axes.count(",") + 1 or packed.shape[-3] != count:
        rule, remedy = f"it must be {axes}", "Stack the tensors along that dimension"
        raise ArgumentError.broken(f"{name}.shape", tuple(packed.shape), rule, remedy)
    return packed.unbind(-3)
