"""The operator ``tmaasync::scaled_matmul``."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync import ops
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


define(
    "scaled_matmul",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, ScalarType? dtype=None",
    _run,
    _fake,
)
