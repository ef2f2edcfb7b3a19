"""flash_attn's functions for queries, keys and values packed in one tensor."""

from __future__ import annotations

from typing import Any

from tmaasync.errors import ArgumentError
from tmaasync.torch._flash_attn import flash_attn_func, flash_attn_varlen_func
from tmaasync.torch._tensors import require_tensors

__all__ = [
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]


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
    """Call `flash_attn_func` with the parts of ``qkv``, which are not copied.

    Args:
        qkv: [batch, positions, 3, heads, head_dim].
        dropout_p: As in `flash_attn_func`, like all other arguments, results and errors.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        alibi_slopes: As in `flash_attn_func`.
        deterministic: As in `flash_attn_func`.
        return_attn_probs: As in `flash_attn_func`.
    """
    q, k, v = _parts(3, "[batch, positions, 3, heads, head_dim]", qkv=qkv)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
    """Call `flash_attn_func` with the parts of ``kv``, which are not copied.

    Args:
        q: [batch, positions, heads, head_dim].
        kv: [batch, keys, 2, kv_heads, head_dim].
        dropout_p: As in `flash_attn_func`, like all other arguments, results and errors.
        softmax_scale: As in `flash_attn_func`.
        causal: As in `flash_attn_func`.
        window_size: As in `flash_attn_func`.
        softcap: As in `flash_attn_func`.
        alibi_slopes: As in `flash_attn_func`.
        deterministic: As in `flash_attn_func`.
        return_attn_probs: As in `flash_attn_func`.
    """
    k, v = _parts(2, "[batch, keys, 2, kv_heads, head_dim]", kv=kv, q=q)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
    """Call `flash_attn_varlen_func` with the parts of ``qkv``, which are not copied.

    Args:
        qkv: [rows, 3, heads, head_dim].
        cu_seqlens: Cumulative lengths of the sequences, int32.
        max_seqlen: Rows of the longest sequence; None if ``cu_seqlens`` is in host memory.
        dropout_p: As in `flash_attn_varlen_func`, like all other arguments, results and errors.
        softmax_scale: As in `flash_attn_varlen_func`.
        causal: As in `flash_attn_varlen_func`.
        window_size: As in `flash_attn_varlen_func`.
        softcap: As in `flash_attn_varlen_func`.
        alibi_slopes: As in `flash_attn_varlen_func`.
        deterministic: As in `flash_attn_varlen_func`.
        return_attn_probs: As in `flash_attn_varlen_func`.
    """
    q, k, v = _parts(3, "[rows, 3, heads, head_dim]", qkv=qkv, cu_seqlens=cu_seqlens)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
    """Call `flash_attn_varlen_func` with the parts of ``kv``, which are not copied.

    Args:
        q: [rows, heads, head_dim].
        kv: [key_rows, 2, kv_heads, head_dim].
        cu_seqlens_q: As in `flash_attn_varlen_func`, like all other arguments, results and errors.
        cu_seqlens_k: As in `flash_attn_varlen_func`.
        max_seqlen_q: As in `flash_attn_varlen_func`.
        max_seqlen_k: As in `flash_attn_varlen_func`.
        dropout_p: As in `flash_attn_varlen_func`.
        softmax_scale: As in `flash_attn_varlen_func`.
        causal: As in `flash_attn_varlen_func`.
        window_size: As in `flash_attn_varlen_func`.
        softcap: As in `flash_attn_varlen_func`.
        alibi_slopes: As in `flash_attn_varlen_func`.
        deterministic: As in `flash_attn_varlen_func`.
        return_attn_probs: As in `flash_attn_varlen_func`.
    """
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    k, v = _parts(2, "[key_rows, 2, kv_heads, head_dim]", kv=kv, q=q, **lengths)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def _parts(count: int, axes: str, **tensors: Any) -> Any:
    """Return the ``count`` parts of the first tensor, along the dimension before the heads."""
    require_tensors(**tensors)
    name, packed = next(iter(tensors.items()))
    if packed.dim() != axes.count(",") + 1 or packed.shape[-3] != count:
        rule, remedy = f"it must be {axes}", "Stack the tensors along that dimension"
        raise ArgumentError.broken(f"{name}.shape", tuple(packed.shape), rule, remedy)
    return packed.unbind(-3)
