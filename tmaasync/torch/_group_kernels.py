"""Calls of the operations of a process group on GPUs, each for arguments of given layouts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.ops._all_gather import gather_rows
from tmaasync.ops._all_gather_matmul import AllGatherMatmul, gather_and_multiply
from tmaasync.ops._all_gather_scaled_matmul import AllGatherScaledMatmul
from tmaasync.ops._all_to_all import exchange_rows
from tmaasync.ops._flash.gradients import GRADIENTS, INPUTS
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._gemm.config import LINE_BYTES, SCALE_BLOCK
from tmaasync.ops._layouts import Layout
from tmaasync.ops._matmul_reduce import (
    MatmulAllReduce,
    MatmulReduceScatter,
    multiply_and_reduce,
)
from tmaasync.ops._ranks import RankedCall, Ranks, even_shards
from tmaasync.ops._reduce_ranks import reduce_rows
from tmaasync.ops._ring_attention import RingOperands, attend
from tmaasync.ops._ring_attention_backward import differentiate
from tmaasync.ops._scaled_matmul import has_column_scales
from tmaasync.ops._scaled_matmul_reduce import ScaledMatmulReduceScatter
from tmaasync.torch._attention_options import reachable
from tmaasync.torch._group import Group
from tmaasync.torch._group_calls import Call
from tmaasync.torch._tensors import padded_columns

_FLAT_COLUMNS = 256  # of contiguous tensors as matrices


def all_gather_matmul(group: Group, a: Any, b: Any, rows: Sequence[int]) -> Call:
    _agree(group, "all_gather_matmul", a, rows, a.shape[1])
    read_a, read_b, new = (
        _reader(a),
        _reader(b, either=True),
        _padded(sum(rows), b.shape[1], a.dtype),
    )

    def first(*tensors: Any) -> RankedCall | None:
        own, right, target = _views(*tensors)
        left = _of_all(group, own, rows)
        rights, targets = ([one] * group.count for one in (right, target))
        ranks = group.ranks(own)
        return gather_and_multiply(AllGatherMatmul, ranks, (left, rights), targets, is_new=True)

    return Call(
        group,
        lambda a, b: (read_a(a), read_b(b), new(a)),
        first,
        lambda a, b, out: out.contiguous(),
    )


def matmul_reduce_scatter(group: Group, a: Any, b: Any, rows: Sequence[int]) -> Call:
    read_a, read_b = _reader(a), _reader(b, either=True)
    new = _padded(rows[group.rank], b.shape[1], a.dtype)

    def first(a: Any, b: Any, out: Any) -> RankedCall | None:
        (target,) = _views(out)
        ranks, left, right = _row_parallel(group, "matmul_reduce_scatter", a, b, rows)
        targets = _of_all(group, target, rows)
        return multiply_and_reduce(MatmulReduceScatter, ranks, (left, right), targets, is_new=True)

    return Call(
        group,
        lambda a, b: (read_a(a), read_b(b), new(a)),
        first,
        lambda a, b, out: out.contiguous(),
    )


def all_gather_scaled_matmul(
    group: Group, a: Any, b: Any, scale_a: Any, scale_b: Any, rows: Sequence[int], dtype: Any
) -> Call:
    _agree(group, "all_gather_scaled_matmul", a, rows, a.shape[1])
    read_a, read_b, read_scales = _reader(a), _reader(b.mT), _reader_of_scales(b, scale_a, scale_b)
    new = _padded(sum(rows), b.shape[1], dtype)

    def first(*tensors: Any) -> RankedCall | None:
        own, right, of_a, of_b, target = _views(*tensors)
        left, scales = (_of_all(group, one, rows) for one in (own, of_a))
        rights, of_rights, targets = ([one] * group.count for one in (right, of_b, target))
        operands = left, rights, scales, of_rights
        ranks = group.ranks(own)
        return gather_and_multiply(AllGatherScaledMatmul, ranks, operands, targets, is_new=True)

    return Call(
        group,
        lambda a, b, of_a, of_b: (read_a(a), read_b(b.mT).mT, of_a, read_scales(of_b), new(a)),
        first,
        lambda *tensors: tensors[-1].contiguous(),
    )


def scaled_matmul_reduce_scatter(
    group: Group, a: Any, b: Any, scale_a: Any, scale_b: Any, rows: Sequence[int], dtype: Any
) -> Call:
    reads = _reader(a), _reader(b.mT), _reader(scale_a.mT)
    read_scales = _reader_of_scales(b, scale_a, scale_b)
    new = _padded(rows[group.rank], b.shape[1], dtype)

    def tensors(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Sequence[Any]:
        read_a, read_b, read_scale = reads
        scales = read_scale(scale_a.mT).mT, read_scales(scale_b)
        return read_a(a), read_b(b.mT).mT, *scales, new(a)

    def first(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> RankedCall | None:
        (target,) = _views(out)
        kind = "column" if has_column_scales(b, scale_b) else f"{SCALE_BLOCK} columns"
        name = f"scaled_matmul_reduce_scatter in {dtype} with scales per {kind} of b"
        ranks, *operands = _row_parallel(group, name, a, b, rows, scale_a, scale_b)
        targets = _of_all(group, target, rows)
        kernel = ScaledMatmulReduceScatter
        return multiply_and_reduce(kernel, ranks, operands, targets, is_new=True)

    return Call(group, tensors, first, lambda *tensors: tensors[-1].contiguous())


def matmul_all_reduce(group: Group, a: Any, b: Any, rows: object) -> Call:
    del rows  # the output has the rows of a
    read_a, read_b = _reader(a), _reader(b, either=True)
    shared = a.shape[0], b.shape[1], a.dtype
    own = functools.cache(lambda: group.matrices(*shared)[group.rank])

    def first(a: Any, b: Any) -> RankedCall | None:
        ranks, left, right = _row_parallel(group, "matmul_all_reduce", a, b, [a.shape[0]])
        outs = _views(*group.matrices(*shared))
        return multiply_and_reduce(MatmulAllReduce, ranks, (left, right), outs, is_new=True)

    return Call(
        group,
        lambda a, b: (read_a(a), read_b(b)),
        first,
        lambda a, b: _copied_from(own()),
    )


def all_gather(group: Group, tensor: Any, rows: Sequence[int]) -> Call:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    _agree(group, "all_gather", tensor, rows, inner)
    read = _sector_reader(tensor)
    shared = sum(rows), padded_columns(columns, tensor.dtype), tensor.dtype

    @functools.cache
    def gathered() -> Any:
        return group.matrices(*shared)[group.rank][:, :columns].view(-1, *inner)

    def first(whole: Any) -> RankedCall:
        (own,) = _views(whole)
        parts, full = _of_all(group, own, rows), _views(*group.matrices(*shared))
        return gather_rows(group.ranks(own), parts, full)

    return Call(group, lambda tensor: (read(tensor),), first, lambda _: _copied_from(gathered()))


def reduce_scatter(group: Group, tensor: Any, rows: Sequence[int]) -> Call:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    _agree(group, "reduce_scatter", tensor, rows, inner)
    own_rows, padded = rows[group.rank], padded_columns(columns, tensor.dtype)
    shared = tensor.shape[0], padded, tensor.dtype

    @functools.cache
    def source() -> Any:
        return group.matrices(*shared)[group.rank][:, :columns].view(-1, *inner)

    def tensors(tensor: Any) -> Sequence[Any]:
        source().copy_(tensor)
        return (tensor.new_empty((own_rows, padded)),)

    def first(out: Any) -> RankedCall:
        (target,) = _views(out)
        targets = _of_all(group, target, rows)
        sources, ranks = _views(*group.matrices(*shared)), group.ranks(target)
        return reduce_rows(ranks, sources, targets, tuple(rows), all_reduce=False)

    def result(out: Any) -> Any:
        return out[:, :columns].contiguous().view(own_rows, *inner)

    is_whole = inner == (padded,)
    return Call(group, tensors, first, (lambda out: out) if is_whole else result)


def all_reduce(group: Group, tensor: Any, rows: object) -> Call:
    del rows
    shape, count = tensor.shape, tensor.numel()
    _agree(group, "all_reduce", tensor, [shape[0]], shape[1:])
    lines = -(-count // _FLAT_COLUMNS)
    shared = lines, _FLAT_COLUMNS, tensor.dtype

    @functools.cache
    def whole() -> Any:
        return group.matrices(*shared)[group.rank].view(-1)[:count].view(shape)

    def tensors(tensor: Any) -> Sequence[Any]:
        whole().copy_(tensor)
        return ()

    def first() -> RankedCall:
        views = _views(*group.matrices(*shared))
        shards = tuple(even_shards(lines, group.count))
        return reduce_rows(group.ranks(views[group.rank]), views, views, shards, all_reduce=True)

    return Call(group, tensors, first, lambda: _copied_from(whole()))


def all_to_all(
    group: Group,
    call: str,
    tensor: Any,
    counts: Any,
    rows: Sequence[int],
    room: int,
    *,
    combine: bool,
) -> Call:
    inner = tensor.shape[1:]
    columns = math.prod(inner)
    group.agree(call, None, lambda: f"{call}, {_gpu(tensor.device)}")
    read, padded = _sector_reader(tensor), padded_columns(columns, tensor.dtype)
    owned = 0 if combine else counts.shape[0] // group.count
    rooms = [room] * group.count
    sent, received = (rooms, rows) if combine else (rows, rooms)
    shared = max(received), padded, tensor.dtype

    @functools.cache
    def mine() -> tuple[Any, Any]:
        """Return the own rows, and what a caller sees of them."""
        own = group.matrices(*shared)[group.rank][: received[group.rank]]
        return own, own[:, :columns].view(-1, *inner)

    def tensors(tensor: Any, counts: Any) -> Sequence[Any]:
        mine()[0].zero_()  # what receives no row; peers store when this rank's kernel runs
        return read(tensor), counts.contiguous(), counts.new_empty((owned,))

    def first(*tensors: Any) -> RankedCall:
        own, given, written = _views(*tensors)
        outs = [one[:count] for one, count in zip(group.matrices(*shared), received, strict=True)]
        sources = _of_all(group, own, sent)
        every = [[one] * group.count for one in (given, written)]
        lists = sources, every[0], _views(*outs), [] if combine else every[1]
        return exchange_rows(group.ranks(own), *lists, combine=combine)

    return Call(group, tensors, first, lambda *tensors: (_copied_from(mine()[1]), tensors[-1]))


def ring_attention(
    group: Group, call: str, q: Any, k: Any, v: Any, *, causal: bool = False, scale: Any = None
) -> Call:
    del k, v
    batch, length, heads, head_dim = q.shape
    is_empty = q.numel() == 0

    def tensors(q: Any, k: Any, v: Any) -> Sequence[Any]:
        out = q.new_empty(q.shape)
        lse = q.new_empty((batch, heads, length), dtype=torch.float32)
        return *map(reachable, (q, k, v)), out, lse

    def first(*tensors: Any) -> RankedCall | None:
        if is_empty:
            return None
        ranks, (*operands, outs, sums) = _alike(group, call, *tensors)
        each = RingOperands(*operands)
        scores = Scores.of(head_dim, causal, scale, None, None)
        return attend(ranks, each, each.sizes(causal), scores, outs, sums)

    return Call(group, tensors, first, lambda *tensors: tensors[-2:])


def ring_attention_backward(
    group: Group,
    call: str,
    *given: Any,
    causal: bool = False,
    scale: Any = None,
    deterministic: bool = False,
) -> Call:
    is_empty = given[1].numel() == 0

    def tensors(*given: Any) -> Sequence[Any]:
        *moved, lse = given
        dout, q, k, v, out = map(reachable, moved)
        grads = [one.new_empty(one.shape) for one in (q, k, v)]
        return dout, q, _whole_heads(k), _whole_heads(v), out, lse.contiguous(), *grads

    def first(*tensors: Any) -> list[RankedCall] | None:
        if is_empty:
            return None
        ranks, lists = _alike(group, call, *tensors)
        every = dict(zip((*INPUTS, *GRADIENTS), lists, strict=True))
        sizes = RingOperands(every["q"], every["k"], every["v"]).sizes(causal)
        scores = Scores.of(sizes.head_dim, False, scale, None, None)
        return differentiate(ranks, sizes, scores, every, deterministic)

    return Call(group, tensors, first, lambda *tensors: tensors[-3:])


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
    group: Group, name: str, a: Any, b: Any, rows: Sequence[int], *scales: Any
) -> tuple[Any, ...]:
    """Return the ranks and the operands of all, which share a tile config."""
    views = _views(a, b, *scales)
    ranks = group.ranks(views[0])
    layouts = [(view.shape, view.strides_bytes) for view in views]
    on_lines = [max(strides) % LINE_BYTES == 0 for _, strides in layouts[:2]]
    is_k_major = layouts[1][1][0] < layouts[1][1][1]
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    key = name, tuple(rows), m, n, k, a.dtype, *on_lines, is_k_major

    def call() -> str:
        return f"{name} of {a.dtype}, M {m}, rows {list(rows)}, N {n}, {_gpu(a.device)}"

    agreed = group.agree(key, layouts, call)
    operands = []
    for position, own in enumerate(views):
        each = [layouts_of[position] for layouts_of in agreed]
        stand_ins = [own._replace(shape=shape, strides_bytes=steps) for shape, steps in each]
        stand_ins[group.rank] = own
        operands.append(stand_ins)
    return ranks, *operands


# --- tensors ------------------------------------------------------------------------------------


def _views(*tensors: Any) -> list[ArrayView]:
    return [_arrays.view(one) for one in tensors]


def _of_all(group: Group, own: ArrayView, rows: Sequence[int]) -> list[ArrayView]:
    """Return the own rows, and the layouts of other ranks' rows with the same columns."""
    every = [own._replace(shape=(count, own.shape[1])) for count in rows]
    every[group.rank] = own
    return every


def _padded(rows: int, columns: int, dtype: Any) -> Callable[[Any], Any]:
    """Return what makes matrices next to a tensor whose rows are a multiple of 16 bytes apart."""
    pitch = padded_columns(columns, dtype)

    def new(like: Any) -> Any:
        whole = like.new_empty((rows, pitch), dtype=dtype)
        return whole if pitch == columns else whole[:, :columns]

    return new


def _reader(matrix: Any, *, either: bool = False) -> Callable[[Any], Any]:
    """Return what reads matrices of this layout: as they are, or as copies if TMA cannot load rows.

    With ``either`` it may load rows or columns.
    """
    layouts = [Layout.of(view) for view in _views(matrix)]
    if either:
        layouts += [one.transposed for one in layouts]
    if any(one.in_rows() for one in layouts):
        return lambda matrix: matrix
    new = _padded(matrix.shape[0], matrix.shape[1], matrix.dtype)
    return lambda matrix: new(matrix).copy_(matrix)


def _reader_of_scales(b: Any, scale_a: Any, scale_b: Any) -> Callable[[Any], Any]:
    """Return what reads scales of b without torch's padding along K."""
    blocks = scale_a.shape[1]
    read = _reader(scale_b[:blocks], either=not has_column_scales(b, scale_b))
    return lambda scale_b: read(scale_b[:blocks])


def _sector_reader(tensor: Any) -> Callable[[Any], Any]:
    """Return what reads rows that TMA can store: with the columns of a copy's padding."""
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    padded = padded_columns(columns, tensor.dtype)
    if padded == columns:
        read = _reader(tensor.reshape(rows, columns))
        return read if tensor.ndim == 2 else lambda tensor: read(tensor.reshape(rows, columns))

    def read_padded(tensor: Any) -> Any:
        copy = tensor.new_empty((rows, padded))
        copy[:, :columns] = tensor.reshape(rows, columns)
        return copy

    return read_padded


def _copied_from(shared: Any) -> Any:
    return shared.clone(memory_format=torch.contiguous_format)


def _whole_heads(tensor: Any) -> Any:
    """Return the keys or values, or a copy, so that the heads of a position are contiguous."""
    return tensor if tensor[:1, :1].is_contiguous() else tensor.contiguous()
