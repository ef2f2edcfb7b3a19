"""``tmaasync::grouped_matmul``, its backward, and ``tmaasync::k_grouped_matmul``."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync import ops
from tmaasync.ops import _grouped_matmul, _k_grouped_matmul
from tmaasync.torch._registry import (
    define,
    refuse_second_backward,
    register_autocast,
    register_backward,
)
from tmaasync.torch._stand_ins import stand_ins
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none, torchs_type


def grouped_matmul(a: Any, b: Any, offsets: Any, *, out: Any = None, dtype: Any = None) -> Any:
    """Grouped GEMM (MoE), ``out[rows of g] = a[rows of g] @ b[g]``, differentiable in a and b.

    This is `tmaasync.ops.grouped_matmul` as the operator ``torch.ops.tmaasync.grouped_matmul``. Its
    output is contiguous. The gradient of ``a`` is a grouped GEMM too, with zeros for rows after the
    last group. The gradient of ``b`` is one `k_grouped_matmul`. Neither waits for ``offsets``.
    There is no second derivative.

    Args:
        a: [T, K], bfloat16 or float16.
        b: [G, K, N], of the same type.
        offsets: [G], a tensor of integers: the end row of each group.
        out: The output, [T, N]. With it there is no backward.
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``a``.

    Returns:
        The output. Rows after the last group are uninitialised.
    """
    require_tensors(a=a, b=b, offsets=offsets)
    require_tensors_or_none(out=out)
    dtype = torchs_type(dtype)
    operator = torch.ops.tmaasync.grouped_matmul
    if out is None:
        return operator.default(a, b, offsets, dtype=dtype)
    operator.out(a, b, offsets, dtype=dtype, out=out)
    return out


def k_grouped_matmul(a: Any, b: Any, offsets: Any, *, out: Any = None, dtype: Any = None) -> Any:
    """K-grouped GEMM, ``out[g] = a[:, rows of g] @ b[rows of g]``.

    This is `tmaasync.ops.k_grouped_matmul` as the operator ``torch.ops.tmaasync.k_grouped_matmul``.
    Its output is contiguous. It has no backward.

    Args:
        a: [M, T], bfloat16 or float16; M contiguous.
        b: [T, N], of the same type; N contiguous.
        offsets: [G], a tensor of integers: the end row of each group.
        out: The output, [G, M, N].
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``a``.

    Returns:
        The output.
    """
    require_tensors(a=a, b=b, offsets=offsets)
    require_tensors_or_none(out=out)
    dtype = torchs_type(dtype)
    operator = torch.ops.tmaasync.k_grouped_matmul
    if out is None:
        return operator.default(a, b, offsets, dtype=dtype)
    operator.out(a, b, offsets, dtype=dtype, out=out)
    return out


# --- kernels and fake kernels -------------------------------------------------------------------


def _run(a: Any, b: Any, offsets: Any, *, dtype: Any = None, out: Any = None) -> Any:
    result = ops.grouped_matmul(a, b, offsets, dtype=dtype, out=out)
    return result if out is not None else result.contiguous()


def _fake(a: Any, b: Any, offsets: Any, *, dtype: Any = None, out: Any = None) -> Any:
    views = stand_ins(a=a, b=b, offsets=offsets, out=out)
    if views is not None:
        _grouped_matmul.checked(**views, dtype=dtype)
    return a.new_empty((a.shape[0], b.shape[2]), dtype=dtype)


def _run_k_grouped(a: Any, b: Any, offsets: Any, *, dtype: Any = None, out: Any = None) -> Any:
    result = ops.k_grouped_matmul(a, b, offsets, dtype=dtype, out=out)
    return result if out is not None else result.contiguous()


def _fake_k_grouped(a: Any, b: Any, offsets: Any, *, dtype: Any = None, out: Any = None) -> Any:
    views = stand_ins(a=a, b=b, offsets=offsets, out=out)
    if views is not None:
        _k_grouped_matmul.checked(**views, dtype=dtype)
    return a.new_empty((offsets.shape[0], a.shape[0], b.shape[1]), dtype=dtype)


define(
    "grouped_matmul",
    "Tensor a, Tensor b, Tensor offsets, *, ScalarType? dtype=None",
    _run,
    _fake,
    is_differentiable=True,
)
define(
    "k_grouped_matmul",
    "Tensor a, Tensor b, Tensor offsets, *, ScalarType? dtype=None",
    _run_k_grouped,
    _fake_k_grouped,
)


# --- backward -----------------------------------------------------------------------------------


def _save(ctx: Any, output: Any, a: Any, b: Any, offsets: Any, **options: Any) -> None:
    del output, options
    needs_a, needs_b, _ = ctx.needs
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None, offsets)
    ctx.shape, ctx.dtype = a.shape, a.dtype


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    refuse_second_backward("grouped_matmul", "torch.matmul on each group")
    a, b, offsets = ctx.saved_tensors
    grad = grad.to(ctx.dtype).contiguous()
    of_a = of_b = None
    if b is not None:
        # The kernel does not write rows after the last group.
        of_a = grad.new_zeros(ctx.shape)
        torch.ops.tmaasync.grouped_matmul.out(grad, b.mT, offsets, out=of_a)
    if a is not None:
        of_b = torch.ops.tmaasync.k_grouped_matmul(a.mT, grad, offsets)
    return of_a, of_b, None


register_backward("grouped_matmul", _run, _save, _backward)
register_autocast("grouped_matmul", operands=2)
register_autocast("k_grouped_matmul", operands=2)
