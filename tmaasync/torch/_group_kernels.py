"""The kernels of the operations of a process group, on this rank's tensors on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.ops._all_gather import gather_rows
from tmaasync.ops._all_gather_matmul import gather_and_multiply
from tmaasync.ops._all_to_all import exchange_rows
from tmaasync.ops._flash.gradients import GRADIENTS, INPUTS
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._gemm.config import LINE_BYTES
from tmaasync.ops._layouts import Layout, Operand
from tmaasync.ops._matmul_reduce import (
    MatmulAllReduce,
    MatmulReduceScatter,
    multiply_and_reduce,
)
from tmaasync.ops._ranks import Ranks, even_shards
from tmaasync.ops._reduce_ranks import reduce_rows
from tmaasync.ops._ring_attention import RingOperands, attend
from tmaasync.ops._ring_attention_backward import differentiate
from tmaasync.torch._attention_options import reachable
from tmaasync.torch._group import Group

_SECTOR_BYTES = 16  # TMA moves multiples
_FLAT_COLUMNS = 256  # of contiguous tensors as matrices


def all_gather_matmul(group: Group, a: Any, b: Any, rows: Sequence[int]) -> Any:
    a, b = _in_rows(a), _operand(b)
    out = _padded(a, sum(rows), b.shape[1])
    own, right, target = _views(a, b, out)
    ranks = group.ranks(own)
    _agree(group, "all_gather_matmul", a, rows, a.shape[1])
    left = [_stand_in(own, count, a.shape[1]) for count in rows]
    left[group.rank] = own
    count = len(ranks)
    gather_and_multiply(ranks, left, [right] * count, [target] * count, is_new=True)
    return out.contiguous()


def matmul_reduce_scatter(group: Group, a: Any, b: Any, rows: Sequence[int]) -> Any:
    a, b = _in_rows(a), _operand(b)
    out = _padded(a, rows[group.rank], b.shape[1])
    (target,) = _views(out)
    ranks, left, right = _row_parallel(group, "matmul_reduce_scatter", a, b, rows)
    targets = [_stand_in(target, count, b.shape[1]) for count in rows]
    targets[group.rank] = target
    multiply_and_reduce(MatmulReduceScatter, ranks, left, right, targets, is_new=True)
    return out.contiguous()


def matmul_all_reduce(group: Group, a: Any, b: Any, rows: object) -> Any:
    del rows  # the output has the rows of a
    a, b = _in_rows(a), _operand(b)
    ranks, left, right = _row_parallel(group, "matmul_all_reduce", a, b, [a.shape[0]])
    outs = group.matrices(a.shape[0], b.shape[1], a.dtype)
    multiply_and_reduce(MatmulAllReduce, ranks, left, right, _views(*outs), is_new=True)
    return outs[group.rank].clone(memory_format=torch.contiguous_format)


def all_gather(group: Group, tensor: Any, rows: Sequence[int]) -> Any:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    whole = _whole_sectors(tensor.reshape(tensor.shape[0], columns))
    (own,) = _views(whole)
    ranks = group.ranks(own)
    _agree(group, "all_gather", tensor, rows, inner)
    full = group.matrices(sum(rows), whole.shape[1], tensor.dtype)
    parts = [_stand_in(own, count, whole.shape[1]) for count in rows]
    parts[group.rank] = own
    gather_rows(ranks, parts, _views(*full))
    mine = full[group.rank][:, :columns]
    return mine.clone(memory_format=torch.contiguous_format).view(sum(rows), *inner)


def reduce_scatter(group: Group, tensor: Any, rows: Sequence[int]) -> Any:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    out = _padded(tensor, rows[group.rank], columns, is_whole=True)
    (target,) = _views(out)
    ranks = group.ranks(target)
    _agree(group, "reduce_scatter", tensor, rows, inner)
    matrices = group.matrices(tensor.shape[0], out.shape[1], tensor.dtype)
    matrices[group.rank][:, :columns] = tensor.reshape(tensor.shape[0], columns)
    targets = [_stand_in(target, count, out.shape[1]) for count in rows]
    targets[group.rank] = target
    reduce_rows(ranks, _views(*matrices), targets, tuple(rows), all_reduce=False)
    return out[:, :columns].contiguous().view(rows[group.rank], *inner)


def all_reduce(group: Group, tensor: Any, rows: object) -> Any:
    del rows
    count = tensor.numel()
    lines = -(-count // _FLAT_COLUMNS)
    (view,) = _views(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
    ranks = group.ranks(view)
    _agree(group, "all_reduce", tensor, [tensor.shape[0]], tensor.shape[1:])
    matrices = group.matrices(lines, _FLAT_COLUMNS, tensor.dtype)
    flat = matrices[group.rank].view(-1)[:count]
    flat.copy_(tensor.reshape(-1))
    views = _views(*matrices)
    reduce_rows(ranks, views, views, tuple(even_shards(lines, len(ranks))), all_reduce=True)
    return flat.clone().view(tensor.shape)


def all_to_all(
    group: Group,
    call: str,
    tensor: Any,
    counts: Any,
    rows: Sequence[int],
    room: int,
    *,
    combine: bool,
) -> tuple[Any, Any]:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    whole = _whole_sectors(tensor.reshape(tensor.shape[0], columns))
    ends = counts.new_empty(0 if combine else counts.shape[0] // group.count)
    own, given, written = _views(whole, counts.contiguous(), ends)
    ranks = group.ranks(own)
    group.agree(call, None, lambda: f"{call}, {_gpu(tensor.device)}")
    rooms = [room] * len(ranks)
    sent, received = (rooms, rows) if combine else (rows, rooms)
    full = group.matrices(max(received), whole.shape[1], tensor.dtype)
    outs = [one[:count] for one, count in zip(full, received, strict=True)]
    outs[group.rank].zero_()  # what receives no row; peers store when this rank's kernel runs
    sources = [_stand_in(own, count, whole.shape[1]) for count in sent]
    sources[group.rank] = own
    every = [] if combine else [written] * len(ranks)
    exchange_rows(ranks, sources, [given] * len(ranks), _views(*outs), every, combine=combine)
    mine = outs[group.rank][:, :columns].clone(memory_format=torch.contiguous_format)
    return mine.view(-1, *inner), ends


def ring_attention(
    group: Group, call: str, q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None
) -> tuple[Any, Any]:
    batch, length, heads, head_dim = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty((batch, heads, length), dtype=torch.float32)
    if out.numel() == 0:
        return out, lse
    ranks, lists = _alike(group, call, *map(reachable, (q, k, v)), out, lse)
    *operands, outs, sums = lists
    each = RingOperands(*operands)
    scores = Scores.of(head_dim, causal, scale, None, None)
    attend(ranks, each, each.sizes(causal), scores, outs, sums)
    return out, lse


def ring_attention_backward(
    group: Group,
    call: str,
    *tensors: Any,
    causal: bool = False,
    scale: Any = None,
    deterministic: bool = False,
) -> tuple[Any, ...]:
    *moved, lse = tensors
    dout, q, k, v, out = map(reachable, moved)
    grads = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in (q, k, v)]
    if q.numel() == 0:
        return tuple(grads)
    given = dout, q, _whole_heads(k), _whole_heads(v), out, lse.contiguous()
    ranks, lists = _alike(group, call, *given, *grads)
    every = dict(zip((*INPUTS, *GRADIENTS), lists, strict=True))
    sizes = RingOperands(every["q"], every["k"], every["v"]).sizes(causal)
    scores = Scores.of(sizes.head_dim, False, scale, None, None)
    differentiate(ranks, sizes, scores, every, deterministic)
    return tuple(grads)


# --- what ranks agree on ------------------------------------------------------------------------


def _agree(group: Group, name: str, tensor: Any, rows: Sequence[int], inner: Any) -> None:
    """Compare the calls of all ranks, whose keys are equal."""
    key = name, tuple(rows), inner, tensor.dtype

    def call() -> str:
        shapes = f"rows {list(rows)}, columns {inner}"
        return f"{name} of {tensor.dtype}, {shapes}, {_gpu(tensor.device)}"

    group.agree(key, None, call)


def _alike(group: Group, call: str, *tensors: Any) -> tuple[Ranks, list[list[ArrayView]]]:
    """Return the ranks, and lists of views: the tensors of all ranks are like this one's."""
    views = _views(*tensors)
    ranks = group.ranks(views[0])
    group.agree(call, None, lambda: f"{call}, {_gpu(tensors[0].device)}")
    return ranks, [[view] * len(ranks) for view in views]


def _gpu(device: Any) -> str:
    """Return what all GPUs have to have in common: they run as many CTAs."""
    found = torch.cuda.get_device_properties(device)
    return f"on {found.name} with {found.multi_processor_count} SMs"


def _row_parallel(
    group: Group, name: str, a: Any, b: Any, rows: Sequence[int]
) -> tuple[Ranks, list[ArrayView], list[ArrayView]]:
    """Return the ranks and the operands of all, which share a tile config."""
    left, right = _views(a, b)
    ranks = group.ranks(left)
    layouts = [(view.shape, view.strides_bytes) for view in (left, right)]
    on_lines = [max(strides) % LINE_BYTES == 0 for _, strides in layouts]
    is_k_major = layouts[1][1][0] < layouts[1][1][1]
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    key = name, tuple(rows), m, n, k, a.dtype, *on_lines, is_k_major

    def call() -> str:
        return f"{name} of {a.dtype}, M {m}, rows {list(rows)}, N {n}, {_gpu(a.device)}"

    agreed = group.agree(key, layouts, call)
    operands = []
    for position, own in enumerate((left, right)):
        each = [layouts_of[position] for layouts_of in agreed]
        stand_ins = [own._replace(shape=shape, strides_bytes=steps) for shape, steps in each]
        stand_ins[group.rank] = own
        operands.append(stand_ins)
    return ranks, operands[0], operands[1]


# --- tensors ------------------------------------------------------------------------------------


def _views(*tensors: Any) -> list[ArrayView]:
    return [_arrays.view(one) for one in tensors]


def _stand_in(own: ArrayView, rows: int, columns: int) -> ArrayView:
    """Return the layout of another rank's rows, next to the own rows."""
    return own._replace(shape=(rows, columns))


def _sector_columns(columns: int, dtype: Any) -> int:
    itemsize: int = dtype.itemsize
    return -(-columns * itemsize // _SECTOR_BYTES) * _SECTOR_BYTES // itemsize


def _padded(like: Any, rows: int, columns: int, *, is_whole: bool = False) -> Any:
    """Return a new matrix whose rows are a multiple of 16 bytes apart; ``is_whole``: and long."""
    whole = like.new_empty(rows, _sector_columns(columns, like.dtype))
    return whole if is_whole else whole[:, :columns]


def _copied(matrix: Any) -> Any:
    copy = _padded(matrix, *matrix.shape)
    copy.copy_(matrix)
    return copy


def _in_rows(matrix: Any) -> Any:
    """Return the matrix, or a copy, with rows that TMA can load."""
    (view,) = _views(matrix)
    return matrix if Layout.of(view).in_rows() is not None else _copied(matrix)


def _operand(matrix: Any) -> Any:
    """Return the matrix, or a copy, so that TMA can load its rows or its columns."""
    (view,) = _views(matrix)
    return _copied(matrix) if Operand.of(Layout.of(view)).is_staged else matrix


def _whole_heads(tensor: Any) -> Any:
    """Return the keys or values, or a copy, so that the heads of a position are contiguous."""
    return tensor if tensor[0, 0].is_contiguous() else tensor.contiguous()


def _whole_sectors(matrix: Any) -> Any:
    """Return the matrix with rows that TMA can store: with columns of a copy's padding."""
    if matrix.shape[1] * matrix.dtype.itemsize % _SECTOR_BYTES == 0:
        return _in_rows(matrix)
    copy = _padded(matrix, *matrix.shape, is_whole=True)
    copy[:, : matrix.shape[1]] = matrix
    return copy
