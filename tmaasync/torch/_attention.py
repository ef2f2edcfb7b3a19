"""``tmaasync::attention``, ``tmaasync::varlen_attention``, and both with the log-sum-exp."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync import ops
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync.torch._registry import define

__all__ = ["attention", "varlen_attention"]

_Window = tuple[int | None, int | None]
_MASK = (
    'bool causal=False, str causal_alignment="bottom_right", float? scale=None, '
    "int? window_left=None, int? window_right=None, float? softcap=None"
)
_FLOAT8 = torch.float8_e4m3fn


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
    out: Any = None,
) -> Any:
    """Compute ``softmax(scale * q @ k.T + mask) @ v`` for every head.

    This is `tmaasync.ops.attention` as the operator ``torch.ops.tmaasync.attention``, or
    ``attention_with_lse`` with ``return_lse``. It has no backward. The layout is
    [batch, positions, heads, head_dim]. For [batch, heads, positions, head_dim], torch's layout,
    call `scaled_dot_product_attention`, or pass ``q.transpose(1, 2)`` and so on. Tensors that TMA
    cannot read, because a stride or the address is no multiple of 16 bytes, are copied.

    Args:
        q: [batch, positions, heads, head_dim].
        k: [batch, keys, kv_heads, head_dim].
        v: As k.
        causal: As in `tmaasync.ops.attention`. The operator takes a bool, and
            ``causal_alignment``, ``"bottom_right"`` or ``"top_left"``.
        scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        window: Keys that a query sees (before, after) its own. The operator takes ``window_left``
            and ``window_right``.
        softcap: Scores become ``softcap * tanh(score / softcap)``.
        return_lse: Whether to return the log-sum-exp of the scores too.
        scales: For float8 operands, the descale factors of q, k and v: float32 tensors, or None
            for 1. The operator takes ``scale_q``, ``scale_k`` and ``scale_v``.
        out: A tensor like q to write to.

    Returns:
        The output; with ``return_lse`` a pair of it and the log-sum-exp, float32
        [batch, heads, positions].
    """
    operators = torch.ops.tmaasync
    operator = operators.attention_with_lse if return_lse else operators.attention
    descales = (None, None, None) if scales is None else scales
    mask = _mask_arguments(causal, scale, window, softcap)
    return _called(operator, (q, k, v, *descales), mask, out, return_lse=return_lse)


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
    out: Any = None,
) -> Any:
    """Compute `attention` within each sequence of packed tensors.

    This is `tmaasync.ops.varlen_attention` as the operator ``torch.ops.tmaasync.varlen_attention``,
    or ``varlen_attention_with_lse`` with ``return_lse``. It has no backward. Tensors that TMA
    cannot read are copied, but not a paged KV cache, which is refused then.

    Args:
        q: [rows, heads, head_dim].
        k: [key_rows, kv_heads, head_dim]; with ``page_table`` [pages, page_size, kv_heads,
            head_dim].
        v: As k.
        cu_seqlens_q: Cumulative lengths of the sequences in q, a tensor of int32: 0 first, the
            total last.
        cu_seqlens_k: The same for k; by default ``cu_seqlens_q``.
        max_seqlen_q: Rows of the longest sequence in q; needed where ``cu_seqlens_q`` is on a GPU.
        max_seqlen_k: The same for k.
        causal: As in `attention`.
        scale: As in `attention`.
        window: As in `attention`.
        softcap: As in `attention`.
        page_table: The pages of each sequence's keys, as in `tmaasync.ops.varlen_attention`.
        return_lse: As in `attention`.
        out: A tensor like q to write to.

    Returns:
        The output; with ``return_lse`` a pair of it and the log-sum-exp, float32 [heads, rows].
        Rows of the output after the last sequence are uninitialised.
    """
    operators = torch.ops.tmaasync
    operator = operators.varlen_attention_with_lse if return_lse else operators.varlen_attention
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, page_table)
    mask = _mask_arguments(causal, scale, window, softcap)
    return _called(operator, (q, k, v, *lengths), mask, out, return_lse=return_lse)


def _mask_arguments(
    causal: bool | str, scale: float | None, window: _Window | None, softcap: float | None
) -> dict[str, Any]:
    left, right = (None, None) if window is None else window
    mask: dict[str, Any] = {"causal": bool(causal), "scale": scale, "softcap": softcap}
    if isinstance(causal, str):
        mask["causal_alignment"] = causal
    return {**mask, "window_left": left, "window_right": right}


def _called(
    operator: Any, given: tuple[Any, ...], mask: dict[str, Any], out: Any, *, return_lse: bool
) -> Any:
    if out is None:
        return operator.default(*given, **mask)
    lse = operator.out(*given, **mask, out=out)
    return (out, lse) if return_lse else out


# --- kernels and fake kernels -------------------------------------------------------------------


def _options(
    *,
    causal: bool = False,
    causal_alignment: str = "bottom_right",
    scale: float | None = None,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float | None = None,
) -> dict[str, Any]:
    """Return the mask's arguments of tmaasync.ops."""
    window = None if window_left is window_right is None else (window_left, window_right)
    aligned = causal and (True if causal_alignment == "bottom_right" else causal_alignment)
    return {"causal": aligned, "scale": scale, "window": window, "softcap": softcap}


def _reachable(tensor: Any) -> Any:
    """Return the tensor, or a copy if TMA cannot read it: its stride or address is off 16 bytes."""
    step = TMA_ALIGNMENT // tensor.element_size()
    is_aligned = tensor.data_ptr() % TMA_ALIGNMENT == 0
    if is_aligned and tensor.shape[-1] % step == 0 and tensor.is_contiguous():
        return tensor  # at a third of the cost of a look at each stride
    *outer, last = tensor.stride()
    is_reachable = is_aligned and last == 1
    for size, stride in zip(tensor.shape, outer, strict=False):
        is_reachable = is_reachable and (size == 1 or (stride > 0 and stride % step == 0))
    return tensor if is_reachable else tensor.clone(memory_format=torch.contiguous_format)


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
    mask = _options(**options)
    q, k, v = (_reachable(one) for one in (q, k, v))
    return ops.attention(q, k, v, **mask, scales=given, return_lse=return_lse, out=out)


def _run_attention_with_lse(*given: Any, **options: Any) -> Any:
    return _run_attention(*given, **options, return_lse=True)


def _fake_attention(
    q: Any,
    k: Any,
    v: Any,
    scale_q: Any = None,
    scale_k: Any = None,
    scale_v: Any = None,
    **options: Any,
) -> Any:
    del scale_q, scale_k, scale_v, options
    _check_rank(4, q=q, k=k, v=v)
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
    **options: Any,
) -> Any:
    out, return_lse = options.pop("out", None), options.pop("return_lse", False)
    q = _reachable(q)
    if page_table is None:  # a paged KV cache is too large to be copied in each call
        k, v = _reachable(k), _reachable(v)
    return ops.varlen_attention(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
        page_table=page_table,
        return_lse=return_lse,
        out=out,
        **_options(**options),
    )


def _run_varlen_with_lse(*given: Any, **options: Any) -> Any:
    return _run_varlen(*given, **options, return_lse=True)


def _fake_varlen(  # noqa: PLR0913 - the arguments of the operator
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Any = None,
    **options: Any,
) -> Any:
    del cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, options
    _check_rank(3, q=q)
    _check_rank(3 if page_table is None else 4, k=k, v=v)
    return q.new_empty(q.shape)


def _fake_varlen_with_lse(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, *lengths: Any, **options: Any
) -> Any:
    out = _fake_varlen(q, k, v, cu_seqlens_q, *lengths, **options)
    rows, heads, _ = q.shape
    return out, q.new_empty((heads, rows), dtype=torch.float32)


def _check_rank(rank: int, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        torch._check(
            tensor.ndim == rank,
            lambda name=name, tensor=tensor: (
                f"{name} has shape {tuple(tensor.shape)}; it must have {rank} dimensions"
            ),
        )


_PADDED = (
    "Tensor q, Tensor k, Tensor v, Tensor? scale_q=None, Tensor? scale_k=None, "
    f"Tensor? scale_v=None, *, {_MASK}"
)
_PACKED = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor? cu_seqlens_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? page_table=None, "
    f"*, {_MASK}"
)

define("attention", _PADDED, _run_attention, _fake_attention)
define(
    "attention_with_lse",
    _PADDED,
    _run_attention_with_lse,
    _fake_attention_with_lse,
    returns="(Tensor, Tensor)",
    other_returns="Tensor",
)
define("varlen_attention", _PACKED, _run_varlen, _fake_varlen)
define(
    "varlen_attention_with_lse",
    _PACKED,
    _run_varlen_with_lse,
    _fake_varlen_with_lse,
    returns="(Tensor, Tensor)",
    other_returns="Tensor",
)
