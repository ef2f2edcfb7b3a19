"""FLOPs of the operators, for ``torch.utils.flop_counter.FlopCounterMode``.

They are counted as torch counts its own: two per multiply-add of a matmul, all keys of attention
regardless of the mask, and nothing for epilogues, softmax and scales. Rows after the last group of
a grouped GEMM count too, because only the device knows their number. Operators of a process group
count what this rank multiplies.

The registration imports Triton, if installed: 0.34 s of ``import tmaasync.torch``, unless
torch.compile has imported it (H200 machine, torch 2.11, 2026-11-23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils.flop_counter import register_flop_formula

# These modules define the operators.
import tmaasync.torch._attention
import tmaasync.torch._conv2d
import tmaasync.torch._group_attention
import tmaasync.torch._group_matmuls
import tmaasync.torch._group_scaled
import tmaasync.torch._grouped_matmul
import tmaasync.torch._matmul
import tmaasync.torch._scaled_matmul  # noqa: F401
from tmaasync.torch._group import Members

__all__: list[str] = []

_OPERATORS = torch.ops.tmaasync
_Shape = Sequence[int]

# Matmuls per query and head. Forward: Q K^T and P V. Backward: Q K^T again, dP, dV, dQ and dK.
_FORWARD, _BACKWARD = 2, 5


def _matmul(a: _Shape, b: _Shape, *_: object, **__: object) -> int:
    batches: int = math.prod(torch.broadcast_shapes(a[:-2], b[:-2]))
    return 2 * batches * a[-2] * a[-1] * b[-1]


def _all_gather_matmul(a: _Shape, b: _Shape, *_: object, out_shape: _Shape, **__: object) -> int:
    return 2 * out_shape[0] * a[1] * b[1]


def _grouped_matmul(a: _Shape, b: _Shape, *_: object, **__: object) -> int:
    return 2 * a[0] * a[1] * b[2]


def _k_grouped_matmul(a: _Shape, b: _Shape, *_: object, **__: object) -> int:
    return 2 * a[0] * a[1] * b[1]


def _conv2d(
    images: _Shape, filters: _Shape, *_: object, out_shape: Any = None, **options: Any
) -> int:
    output: _Shape = options["out"] if out_shape is None else out_shape
    return 2 * math.prod(output) * math.prod(filters[1:])


def _attention(q: _Shape, k: _Shape, *_: object, **__: object) -> int:
    return _padded_attention(_FORWARD, q, k)


def _attention_backward(dout: _Shape, q: _Shape, k: _Shape, *_: object, **__: object) -> int:
    return _padded_attention(_BACKWARD, q, k)


def _ring_attention(q: _Shape, k: _Shape, v: object, group: str, **_: object) -> int:
    return Members.of(group).size * _padded_attention(_FORWARD, q, k)


def _ring_attention_backward(
    dout: object, q: _Shape, k: _Shape, v: object, out: object, lse: object, group: str, **_: object
) -> int:
    return Members.of(group).size * _padded_attention(_BACKWARD, q, k)


def _varlen_attention(q: Any, k: Any, v: Any, *sequences: Any, **options: Any) -> int:
    return _packed_attention(_FORWARD, q, *sequences, **options)


def _varlen_attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *sequences: Any, **options: Any
) -> int:
    return _packed_attention(_BACKWARD, q, *sequences, **options)


def _padded_attention(matmuls: int, q: _Shape, k: _Shape) -> int:
    batch, positions, heads, head_dim = q
    return 2 * matmuls * batch * heads * positions * k[1] * head_dim


def _packed_attention(
    matmuls: int,
    q: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *_: object,
    **__: object,
) -> int:
    _, heads, head_dim = q.shape
    queries = _lengths(cu_seqlens_q, max_seqlen_q)
    keys = queries if cu_seqlens_k is None else _lengths(cu_seqlens_k, max_seqlen_k)
    pairs: int = sum(rows * columns for rows, columns in zip(queries, keys, strict=True))
    count: int = 2 * matmuls * heads * head_dim * pairs
    return count


def _lengths(cu_seqlens: Any, longest: int | None) -> list[int]:
    """Return the rows of each sequence; this waits for a device, like torch's own counter.

    For tensors without memory only the longest is known; the count is then an upper bound.
    """
    if isinstance(cu_seqlens, FakeTensor) or cu_seqlens.device.type == "meta":
        return [longest or 0] * (cu_seqlens.shape[0] - 1)
    lengths: list[int] = cu_seqlens.diff().tolist()
    return lengths


_SHAPES, _TENSORS = False, True
_FORMULAS: tuple[tuple[Any, bool, tuple[Any, ...]], ...] = (
    (
        _matmul,
        _SHAPES,
        (
            *(_OPERATORS.matmul, _OPERATORS.scaled_matmul),
            *(_OPERATORS.matmul_reduce_scatter, _OPERATORS.matmul_all_reduce),
            _OPERATORS.scaled_matmul_reduce_scatter,
        ),
    ),
    (
        _all_gather_matmul,
        _SHAPES,
        (_OPERATORS.all_gather_matmul, _OPERATORS.all_gather_scaled_matmul),
    ),
    (_grouped_matmul, _SHAPES, (_OPERATORS.grouped_matmul, _OPERATORS.scaled_grouped_matmul)),
    (_k_grouped_matmul, _SHAPES, (_OPERATORS.k_grouped_matmul,)),
    (_conv2d, _SHAPES, (_OPERATORS.conv2d,)),
    (_attention, _SHAPES, (_OPERATORS.attention, _OPERATORS.attention_with_lse)),
    (_attention_backward, _SHAPES, (_OPERATORS.attention_backward,)),
    (_ring_attention, _SHAPES, (_OPERATORS.ring_attention,)),
    (_ring_attention_backward, _SHAPES, (_OPERATORS.ring_attention_backward,)),
    (
        _varlen_attention,
        _TENSORS,
        (_OPERATORS.varlen_attention, _OPERATORS.varlen_attention_with_lse),
    ),
    (_varlen_attention_backward, _TENSORS, (_OPERATORS.varlen_attention_backward,)),
)
"""With the operators: whether it takes their tensors, for the values, or shapes."""

for _formula, _is_raw, _operators in _FORMULAS:
    register_flop_formula(_operators, get_raw=_is_raw)(_formula)
