"""All-gather, reduce-scatter and all-reduce over a process group, and their backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tmaasync import ops
from tmaasync.errors import ArgumentError, Violation
from tmaasync.torch import _group_emulated, _group_kernels
from tmaasync.torch._group import Group, Members, name_of
from tmaasync.torch._group_nodes import Local, Nodes
from tmaasync.torch._group_rows import Kind, checked_rows, rows_of, unfit_rows
from tmaasync.torch._registry import define_with_backward, refuse_second_backward
from tmaasync.torch._tensors import require_tensors

_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_OPERATORS = torch.ops.tmaasync


def all_gather(tensor: Any, *, group: Any = None, rows: Sequence[int] | None = None) -> Any:
    """Concatenate the tensors of all ranks of a group along the first dimension, on every rank.

    This is `tmaasync.ops.all_gather` for one process per GPU, as the operator
    ``torch.ops.tmaasync.all_gather``. Its gradient is a `reduce_scatter`. The kernel stores into
    memory that ranks share, and costs a copy of the output from there. Otherwise as
    `all_gather_matmul`.

    Args:
        tensor: [M_r, ...], bfloat16, float16 or float32.
        group: As in `all_gather_matmul`.
        rows: As in `all_gather_matmul`.

    Returns:
        [M, ...], contiguous, with M the sum of all M_r.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(tensor=tensor)
    rows = checked_rows(rows)
    if nodes := Nodes.of(group):
        return nodes.gather(_local(_GATHER, tensor), tensor, rows)
    return _OPERATORS.all_gather(tensor, name_of(group), rows)


def reduce_scatter(tensor: Any, *, group: Any = None, rows: Sequence[int] | None = None) -> Any:
    """Add the tensors of all ranks of a group, and return this rank's rows of the sum.

    This is `tmaasync.ops.reduce_scatter` for one process per GPU, as the operator
    ``torch.ops.tmaasync.reduce_scatter``: float32 sums in the order of the ranks, rounded once. Its
    gradient is an `all_gather`. The kernel loads from memory that ranks share, and costs a copy of
    the tensor into it. Otherwise as `all_gather_matmul`.

    Args:
        tensor: [M, ...], bfloat16, float16 or float32, of one shape and type on all ranks.
        group: As in `all_gather_matmul`.
        rows: As in `matmul_reduce_scatter`.

    Returns:
        [M_r, ...], contiguous.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(tensor=tensor)
    rows = checked_rows(rows)
    if nodes := Nodes.of(group):
        return nodes.scatter(_local(_SCATTER, tensor), tensor, rows)
    return _OPERATORS.reduce_scatter(tensor, name_of(group), rows)


def all_reduce(tensor: Any, *, group: Any = None) -> Any:
    """Add the tensors of all ranks of a group: every rank returns the sum, with equal bits.

    This is `tmaasync.ops.all_reduce` for one process per GPU, as the operator
    ``torch.ops.tmaasync.all_reduce``. The gradient of the sum is taken as equal on all ranks, as in
    `matmul_all_reduce`, and passes unchanged. The kernel works in memory that ranks share, and
    costs a copy into it and one from it. Otherwise as `all_gather_matmul`.

    Args:
        tensor: Of any shape, bfloat16, float16 or float32, alike on all ranks.
        group: A process group, as in `all_gather_matmul`. Over nodes call `reduce_scatter` and
            `all_gather`.

    Returns:
        A contiguous tensor of the same shape.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(tensor=tensor)
    return _OPERATORS.all_reduce(tensor, name_of(group))


# --- kernels and fake kernels -------------------------------------------------------------------


_GATHER = Kind("all_gather", _group_kernels.all_gather, True, True)
_SCATTER = Kind("reduce_scatter", _group_kernels.reduce_scatter, True, False)
_REDUCE = Kind("all_reduce", _group_kernels.all_reduce, False, False)


def _local(kind: Kind, tensor: Any) -> Local:
    """Return the operator of a node."""
    operator = getattr(_OPERATORS, kind.name)
    columns = tuple(tensor.shape[1:])
    return Local(kind, "tensor", columns, operator, functools.partial(_violations, kind))


def _run(kind: Kind, tensor: Any, group: str, rows: Any = None) -> Any:
    state = Group.of(group)
    key = state.key((kind.name, None if rows is None else tuple(rows)), tensor)
    if (known := state.calls.get(key)) is not None:
        return known(tensor)
    if kind is _REDUCE and not tensor.ndim:
        return _run(kind, tensor[None], group).view(())
    counts = rows_of(rows, tensor, state.members, gathers=kind.gathers)
    broken = tuple(_violations(kind, tensor, state.members, counts))
    own = tensor.shape[1:] if kind.gathers else tensor.shape
    call = f"{kind.name} of {tensor.dtype}, {tuple(own)}"
    call += f" with rows {counts}" if kind.takes_rows else ""
    state.refuse(call, broken)
    shape = _result_shape(kind, tensor, state.members, counts)
    if tensor.device.type == "cpu":
        return _on_cpu(kind, state, call, tensor, shape, counts)
    if 0 in shape[1:] or sum(counts) == 0:
        return tensor.new_empty(shape)
    return state.first(key, kind.on_gpu(state, tensor, counts), tensor)


def _on_cpu(
    kind: Kind, state: Group, call: str, tensor: Any, shape: Any, counts: Sequence[int]
) -> Any:
    matrix = _group_emulated.as_matrix(tensor, math.prod(shape[1:]))
    shapes = [(count, matrix.shape[1]) for count in counts] if kind is _SCATTER else None
    operation = getattr(ops, kind.name)
    found = _group_emulated.run(state, call, (matrix,), operation, shapes)
    return _group_emulated.without_padding(found, shape)


def _result_shape(
    kind: Kind, tensor: Any, members: Members, counts: Sequence[Any]
) -> tuple[Any, ...]:
    if kind is _REDUCE:
        return tuple(tensor.shape)
    return (sum(counts) if kind.gathers else counts[members.rank], *tensor.shape[1:])


def _fake(kind: Kind, tensor: Any, group: str, rows: Any = None) -> Any:
    members = Members.of(group)
    counts = rows_of(rows, tensor, members, gathers=kind.gathers)
    ArgumentError.raise_for(_violations(kind, tensor, members, counts))
    return tensor.new_empty(_result_shape(kind, tensor, members, counts))


def _violations(
    kind: Kind, tensor: Any, members: Members, rows: Sequence[Any]
) -> Iterator[Violation]:
    yield from unfit_rows("tensor", tensor, members, rows, gathers=kind.gathers)
    if tensor.dtype not in _TYPES:
        rule = "it holds bfloat16, float16 or float32"
        yield Violation("tensor", f"a tensor of {tensor.dtype}", rule, "Convert it")
    if not tensor.ndim and kind is not _REDUCE:
        yield Violation("tensor", "of no dimension", "it has rows", "Pass tensor[None]")


# --- backward -----------------------------------------------------------------------------------


def _save(kind: Kind, ctx: Any, out: Any, tensor: Any, group: str, rows: Any = None) -> None:
    del out
    ctx.group = group
    ctx.rows = rows_of(rows, tensor, Members.of(group), gathers=kind.gathers)


def _backward(kind: Kind, ctx: Any, grad: Any) -> tuple[Any, ...]:
    refuse_second_backward(kind.name, "torch's collectives")
    if kind is _REDUCE:
        return grad, None
    other = _OPERATORS.reduce_scatter if kind.gathers else _OPERATORS.all_gather
    return other(grad, ctx.group, ctx.rows), None, None


for _kind in (_GATHER, _SCATTER, _REDUCE):
    _arguments = "Tensor tensor, str group" + ", SymInt[]? rows=None" * _kind.takes_rows
    define_with_backward(
        _kind.name,
        _arguments,
        functools.partial(_run, _kind),
        functools.partial(_fake, _kind),
        functools.partial(_save, _kind),
        functools.partial(_backward, _kind),
    )
