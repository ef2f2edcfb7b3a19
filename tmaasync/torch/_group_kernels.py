"""The kernels of the operations of a process group, on this rank's tensors on a GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync.ops._all_gather import gather_rows
from tmaasync.ops._all_gather_matmul import AllGatherMatmul, gather_and_multiply
from tmaasync.ops._all_to_all import exchange_rows
from tmaasync.ops._flash.gradients import GRADIENTS, INPUTS
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._gemm.config import LINE_BYTES
from tmaasync.ops._layouts import Layout
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
from tmaasync.torch._group import Done, Group

_SECTOR_BYTES = 16  # TMA moves multiples
_FLAT_COLUMNS = 256  # of contiguous tensors as matrices


def all_gather_matmul(group: Group, a: Any, b: Any, rows: Sequence[int]) -> Any:
    group.enter(a)
    a, b = _in_rows(a), _operand(b)
    out = _padded(a, sum(rows), b.shape[1])

    def first() -> Done | None:
        own, right, target = _views(a, b, out)
        _agree(group, "all_gather_matmul", a, rows, a.shape[1])
        left = [_stand_in(own, count, a.shape[1]) for count in rows]
        left[group.rank] = own
        rights, targets = ([one] * group.count for one in (right, target))
        ranks = group.ranks(own)
        return gather_and_multiply(AllGatherMatmul, ranks, (left, rights), targets, is_new=True)

    group.launch(("all_gather_matmul", *rows), (a, b, out), first)
    return out.contiguous()


def matmul_reduce_scatter(group: Group, a: Any, b: Any, rows: Sequence[int]) -> Any:
    group.enter(a)
    a, b = _in_rows(a), _operand(b)
    out = _padded(a, rows[group.rank], b.shape[1])

    def first() -> Done | None:
        (target,) = _views(out)
        ranks, left, right = _row_parallel(group, "matmul_reduce_scatter", a, b, rows)
        targets = [_stand_in(target, count, b.shape[1]) for count in rows]
        targets[group.rank] = target
        return multiply_and_reduce(MatmulReduceScatter, ranks, (left, right), targets, is_new=True)

    group.launch(("matmul_reduce_scatter", *rows), (a, b, out), first)
    return out.contiguous()


def matmul_all_reduce(group: Group, a: Any, b: Any, rows: object) -> Any:
    del rows  # the output has the rows of a
    group.enter(a)
    a, b = _in_rows(a), _operand(b)
    out = a.shape[0], b.shape[1], a.dtype

    def first() -> Done | None:
        ranks, left, right = _row_parallel(group, "matmul_all_reduce", a, b, [a.shape[0]])
        outs = _views(*group.matrices(*out))
        return multiply_and_reduce(MatmulAllReduce, ranks, (left, right), outs, is_new=True)

    group.launch("matmul_all_reduce", (a, b), first)
    return group.matrix(*out).clone(memory_format=torch.contiguous_format)


def all_gather(group: Group, tensor: Any, rows: Sequence[int]) -> Any:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    group.enter(tensor)
    whole = _whole_sectors(tensor.reshape(tensor.shape[0], columns))
    full = sum(rows), whole.shape[1], tensor.dtype

    def first() -> Done:
        (own,) = _views(whole)
        _agree(group, "all_gather", tensor, rows, inner)
        parts = [_stand_in(own, count, whole.shape[1]) for count in rows]
        parts[group.rank] = own
        return gather_rows(group.ranks(own), parts, _views(*group.matrices(*full)))

    group.launch(("all_gather", inner, *rows), (whole,), first)
    mine = group.matrix(*full)[:, :columns]
    return mine.clone(memory_format=torch.contiguous_format).view(sum(rows), *inner)


def reduce_scatter(group: Group, tensor: Any, rows: Sequence[int]) -> Any:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    group.enter(tensor)
    out = _padded(tensor, rows[group.rank], columns, is_whole=True)
    _agree(group, "reduce_scatter", tensor, rows, inner)
    whole = tensor.shape[0], out.shape[1], tensor.dtype
    group.matrix(*whole)[:, :columns] = tensor.reshape(tensor.shape[0], columns)

    def first() -> Done:
        (target,) = _views(out)
        targets = [_stand_in(target, count, out.shape[1]) for count in rows]
        targets[group.rank] = target
        sources, ranks = _views(*group.matrices(*whole)), group.ranks(target)
        return reduce_rows(ranks, sources, targets, tuple(rows), all_reduce=False)

    group.launch(("reduce_scatter", *whole, *rows), (out,), first)
    return out[:, :columns].contiguous().view(rows[group.rank], *inner)


def all_reduce(group: Group, tensor: Any, rows: object) -> Any:
    del rows
    count = tensor.numel()
    lines = -(-count // _FLAT_COLUMNS)
    group.enter(tensor)
    _agree(group, "all_reduce", tensor, [tensor.shape[0]], tensor.shape[1:])
    whole = lines, _FLAT_COLUMNS, tensor.dtype
    flat = group.matrix(*whole).view(-1)[:count]
    flat.copy_(tensor.reshape(-1))

    def first() -> Done:
        views = _views(*group.matrices(*whole))
        shards = tuple(even_shards(lines, group.count))
        return reduce_rows(group.ranks(views[group.rank]), views, views, shards, all_reduce=True)

    group.launch(("all_reduce", *whole), (), first)
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
    group.enter(tensor)
    group.agree(call, None, lambda: f"{call}, {_gpu(tensor.device)}")
    whole = _whole_sectors(tensor.reshape(tensor.shape[0], columns))
    ends = counts.new_empty(0 if combine else counts.shape[0] // group.count)
    counts, rooms = counts.contiguous(), [room] * group.count
    sent, received = (rooms, rows) if combine else (rows, rooms)
    full = max(received), whole.shape[1], tensor.dtype
    mine = group.matrix(*full)[: received[group.rank]]
    mine.zero_()  # what receives no row; peers store when this rank's kernel runs

    def first() -> Done:
        own, given, written = _views(whole, counts, ends)
        outs = [one[:count] for one, count in zip(group.matrices(*full), received, strict=True)]
        sources = [_stand_in(own, count, whole.shape[1]) for count in sent]
        sources[group.rank] = own
        every = [[one] * group.count for one in (given, written)]
        lists = sources, every[0], _views(*outs), [] if combine else every[1]
        return exchange_rows(group.ranks(own), *lists, combine=combine)

    group.launch(call, (whole, counts, ends), first, moves=False)
    kept = mine[:, :columns].clone(memory_format=torch.contiguous_format)
    return kept.view(-1, *inner), ends


def ring_attention(
    group: Group,
    call: str,
    check: Callable[[], None],
    *given: Any,
    causal: bool = False,
    scale: Any = None,
) -> tuple[Any, Any]:
    """Launch; ``check`` raises the rules that q, k and v break, and is for first calls.

    It costs more than the rest of a later one.
    """
    q, _, _ = given
    if q.ndim != 4:
        check()
    batch, length, heads, head_dim = q.shape
    out = q.new_empty(q.shape)
    lse = q.new_empty((batch, heads, length), dtype=torch.float32)
    tensors = *map(reachable, given), out, lse
    group.enter(q)

    def first() -> Done | None:
        check()
        if out.numel() == 0:
            return None
        ranks, (*operands, outs, sums) = _alike(group, call, *tensors)
        each = RingOperands(*operands)
        scores = Scores.of(head_dim, causal, scale, None, None)
        return attend(ranks, each, each.sizes(causal), scores, outs, sums)

    group.launch(call, tensors, first)
    return out, lse


def ring_attention_backward(
    group: Group,
    call: str,
    check: Callable[[], None],
    *tensors: Any,
    causal: bool = False,
    scale: Any = None,
    deterministic: bool = False,
) -> tuple[Any, ...]:
    check()
    *moved, lse = tensors
    dout, q, k, v, out = map(reachable, moved)
    grads = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in (q, k, v)]
    if q.numel() == 0:
        return tuple(grads)
    group.enter(q)
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
    return matrix if _is_reachable(*_layout(matrix)) else _copied(matrix)


def _operand(matrix: Any) -> Any:
    """Return the matrix, or a copy, so that TMA can load its rows or its columns."""
    layout = _layout(matrix)
    return (
        matrix if _is_reachable(*layout) or _is_reachable(*_layout(matrix.mT)) else _copied(matrix)
    )


def _layout(matrix: Any) -> tuple[Any, ...]:
    is_aligned = matrix.data_ptr() % _SECTOR_BYTES == 0
    return matrix.shape, matrix.stride(), matrix.dtype, is_aligned


@functools.lru_cache(maxsize=1024)  # a view and its layout cost 10 us a call (H200's host)
def _is_reachable(shape: Any, strides: tuple[int, ...], dtype: Any, is_aligned: bool) -> bool:
    held = element(dtype)
    steps = tuple(step * held.itemsize for step in strides)
    return Layout(tuple(shape), steps, held, None, is_aligned).in_rows() is not None


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
