"""The operators ``tmaasync::scaled_matmul`` and ``tmaasync::scaled_grouped_matmul``."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync import ops
from tmaasync.ops import _promoted_grouped_matmul
from tmaasync.ops._block_scaled_matmul import Call
from tmaasync.ops._scaled_matmul import checked
from tmaasync.torch._registry import define
from tmaasync.torch._stand_ins import stand_ins
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none, torchs_type


def scaled_matmul(
    a: Any, b: Any, scale_a: Any, scale_b: Any, *, out: Any = None, dtype: Any = None
) -> Any:
    """Multiply fp8 matrices with scales for blocks of 128 along K (a block-scaled FP8 GEMM).

    This is `tmaasync.ops.scaled_matmul` as the operator ``torch.ops.tmaasync.scaled_matmul``. Its
    output is contiguous. It has no backward.

    Args:
        a: [M, K], float8_e4m3fn or float8_e5m2.
        b: [K, N], of either type; for a matrix [N, K] pass ``b.T``.
        scale_a: [M, ceil(K / 128)], float32.
        scale_b: [ceil(K / 128), ceil(N / 128)] or [ceil(K / 128), N], float32.
        out: The output, [M, N].
        dtype: Output type: bfloat16 (the default), float16 or float32.

    Returns:
        The output.
    """
    require_tensors(a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    require_tensors_or_none(out=out)
    dtype = torchs_type(dtype)
    operator = torch.ops.tmaasync.scaled_matmul
    if out is None:
        return operator.default(a, b, scale_a, scale_b, dtype=dtype)
    operator.out(a, b, scale_a, scale_b, dtype=dtype, out=out)
    return out


def scaled_grouped_matmul(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    offsets: Any,
    *,
    out: Any = None,
    dtype: Any = None,
) -> Any:
    """Grouped GEMM (MoE) of fp8 matrices with scales for blocks of 128 along K.

    This is `tmaasync.ops.scaled_grouped_matmul` as the operator
    ``torch.ops.tmaasync.scaled_grouped_matmul``. Its output is contiguous. It has no backward.

    Args:
        a: [T, K], float8_e4m3fn or float8_e5m2.
        b: [G, K, N], of either type; for matrices [G, N, K] pass ``b.mT``.
        scale_a: [T, ceil(K / 128)], float32.
        scale_b: [G, ceil(K / 128), ceil(N / 128)] or [G, ceil(K / 128), N], float32.
        offsets: [G], a tensor of integers: the end row of each group.
        out: The output, [T, N].
        dtype: Output type: bfloat16 (the default), float16 or float32.

    Returns:
        The output. Rows after the last group are uninitialised.
    """
    require_tensors(a=a, b=b, scale_a=scale_a, scale_b=scale_b, offsets=offsets)
    require_tensors_or_none(out=out)
    dtype = torchs_type(dtype)
    operator = torch.ops.tmaasync.scaled_grouped_matmul
    if out is None:
        return operator.default(a, b, scale_a, scale_b, offsets, dtype=dtype)
    operator.out(a, b, scale_a, scale_b, offsets, dtype=dtype, out=out)
    return out


# --- kernels and fake kernels -------------------------------------------------------------------


def _run(a: Any, b: Any, scale_a: Any, scale_b: Any, *, dtype: Any = None, out: Any = None) -> Any:
    if not scale_a.dtype == scale_b.dtype == torch.float32:
        checked(a, b, scale_a, scale_b, out, dtype)  # raises, as the fake kernel does
    result = ops.scaled_matmul(a, b, scale_a, scale_b, dtype=dtype, out=out)
    return result if out is not None else result.contiguous()


def _fake(a: Any, b: Any, scale_a: Any, scale_b: Any, *, dtype: Any = None, out: Any = None) -> Any:
    views = stand_ins(a=a, b=b, scale_a=scale_a, scale_b=scale_b, out=out)
    if views is not None:
        checked(**views, dtype=dtype)
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype or torch.bfloat16)


def _run_groups(*given: Any, dtype: Any = None, out: Any = None) -> Any:
    if not given[2].dtype == given[3].dtype == torch.float32:
        _check_groups(*given, out=out, dtype=dtype)  # raises, as the fake kernel does
    result = ops.scaled_grouped_matmul(*given, dtype=dtype, out=out)
    return result if out is not None else result.contiguous()


def _check_groups(*given: Any, out: Any, dtype: Any) -> None:
    a, b, scale_a, scale_b, offsets = given
    call = Call(a, b, scale_a, scale_b, out, dtype, (None, None, None), "rows")
    _promoted_grouped_matmul.checked(call, offsets)


def _fake_groups(*given: Any, dtype: Any = None, out: Any = None) -> Any:
    names = ("a", "b", "scale_a", "scale_b", "offsets")
    views = stand_ins(**dict(zip(names, given, strict=True)), out=out)
    if views is not None:
        _check_groups(*(views[name] for name in names), out=views["out"], dtype=dtype)
    a, b, *_ = given
    return a.new_empty((a.shape[0], b.shape[2]), dtype=dtype or torch.bfloat16)


define(
    "scaled_matmul",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, ScalarType? dtype=None",
    _run,
    _fake,
)
define(
    "scaled_grouped_matmul",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offsets, *, ScalarType? dtype=None",
    _run_groups,
    _fake_groups,
)
