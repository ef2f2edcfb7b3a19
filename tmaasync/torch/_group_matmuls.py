"""Tensor-parallel matmuls over a process group, and their backward."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tmaasync import ops
from tmaasync.errors import ArgumentError, Violation
from tmaasync.torch import _group_emulated, _group_kernels
from tmaasync.torch._group import Group, Members, name_of
from tmaasync.torch._group_nodes import Local, Nodes
from tmaasync.torch._group_rows import Kind, checked_rows, rows_of, unfit_rows
from tmaasync.torch._registry import (
    define_with_backward,
    refuse_second_backward,
    register_autocast,
)
from tmaasync.torch._tensors import require_tensors

_TYPES = (torch.bfloat16, torch.float16)
STORED_COLUMNS = 8  # a caller's output for TMA has a multiple of 16 bytes
_OPERATORS = torch.ops.tmaasync


def all_gather_matmul(
    a: Any, b: Any, *, group: Any = None, rows: Sequence[int] | None = None
) -> Any:
    """Multiply the rows of all ranks of a group by this rank's matrix: ``concatenate(a) @ b``.

    This is `tmaasync.ops.all_gather_matmul` for one process per GPU, under torchrun, as the
    operator ``torch.ops.tmaasync.all_gather_matmul``: the column-parallel linear layer of a
    tensor-parallel MLP with sequence parallelism. It is differentiable: the gradient of ``a`` is a
    `matmul_reduce_scatter`, the gradient of ``b`` an `all_gather` and a matmul. There is no second
    derivative.

    On GPUs ranks share memory by `torch.distributed`'s symmetric memory. The first call with shapes
    that are new compares the calls of all ranks, allocates, and waits for them; later calls do
    nothing of it, and CUDA graphs can capture them. All ranks make the same calls in the same
    order, in the backward too, so their tensors require grad alike. On tensors in host memory every
    process gets the tensors of all ranks from the store, and the emulator runs all kernels in it.

    Args:
        a: [M_r, K], bfloat16 or float16.
        b: [K, N_r], of the type of ``a``; for a weight [N_r, K] pass ``weight.T``.
        group: The process group; 1 to 8 ranks with a GPU each. By default all processes. Or a
            `torch.distributed.DeviceMesh` of nodes and the GPUs of each: NCCL moves data between
            nodes while the kernels of each node run. The first call with new shapes compares the
            calls of all nodes before data moves; compiled code checks this rank alone.
        rows: M_r of every rank, the same list on all of them; may have zeros. By default all ranks
            have as many rows as this one.

    Returns:
        [M, N_r], contiguous, of the type of ``a``, with M the sum of all M_r.

    Raises:
        ArgumentError: An argument breaks a rule, on this or another rank; nothing was launched.
        BackendError: A rank did not make its first call within ``TMAASYNC_BUDGET_SECONDS``, by
            default 10.
        HangError: In an earlier call a rank waited for longer than that.
    """
    require_tensors(a=a, b=b)
    rows = checked_rows(rows)
    if nodes := Nodes.of(group):
        return nodes.gather(_local(_GATHER, a.shape[1:], b), a, rows)
    return _OPERATORS.all_gather_matmul(a, b, name_of(group), rows)


def matmul_reduce_scatter(
    a: Any, b: Any, *, group: Any = None, rows: Sequence[int] | None = None
) -> Any:
    """Multiply, add the matrices of all ranks, and return this rank's rows of the sum.

    This is `tmaasync.ops.matmul_reduce_scatter` for one process per GPU, as the operator
    ``torch.ops.tmaasync.matmul_reduce_scatter``: the row-parallel linear layer of a tensor-parallel
    MLP with sequence parallelism. It is differentiable: the gradient of ``a`` is an
    `all_gather_matmul`, the gradient of ``b`` an `all_gather` and a matmul. Otherwise as
    `all_gather_matmul`.

    Args:
        a: [M, K_r], bfloat16 or float16. Of two calls with the same shapes on this rank, the other
            ranks' shapes are equal too.
        b: [K_r, N], of the type of ``a``; for a weight [N, K_r] pass ``weight.T``.
        group: As in `all_gather_matmul`.
        rows: The rows of every rank, the same list on all of them; they add up to M, and may have
            zeros. By default M is divided evenly: the first M % P ranks have one row more.

    Returns:
        [M_r, N], contiguous, of the type of ``a``.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(a=a, b=b)
    rows = checked_rows(rows)
    if nodes := Nodes.of(group):
        return nodes.scatter(_local(_SCATTER, b.shape[1:], b), a, rows)
    return _OPERATORS.matmul_reduce_scatter(a, b, name_of(group), rows)


def matmul_all_reduce(a: Any, b: Any, *, group: Any = None) -> Any:
    """Multiply, and add the matrices of all ranks: every rank returns the sum, with equal bits.

    This is `tmaasync.ops.matmul_all_reduce` for one process per GPU, as the operator
    ``torch.ops.tmaasync.matmul_all_reduce``: the row-parallel linear layer whose output all ranks
    have. Its gradient is taken as equal on all ranks too, as in Megatron-LM and in torch's
    ``RowwiseParallel``: so the backward is two matmuls of this rank alone. The kernel stores into
    memory that ranks share, and costs a copy of the output from there. Otherwise as
    `all_gather_matmul`.

    Args:
        a: [M, K_r], as in `matmul_reduce_scatter`.
        b: [K_r, N], as in `matmul_reduce_scatter`.
        group: A process group, as in `all_gather_matmul`. Over nodes call `matmul_reduce_scatter`
            and `all_gather`.

    Returns:
        [M, N], contiguous, of the type of ``a``.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(a=a, b=b)
    return _OPERATORS.matmul_all_reduce(a, b, name_of(group))


# --- kernels and fake kernels -------------------------------------------------------------------


_GATHER = Kind("all_gather_matmul", _group_kernels.all_gather_matmul, True, True)
_SCATTER = Kind("matmul_reduce_scatter", _group_kernels.matmul_reduce_scatter, True, False)
_REDUCE = Kind("matmul_all_reduce", _group_kernels.matmul_all_reduce, False, False)


def _local(kind: Kind, columns: Any, b: Any) -> Local:
    """Return the operator of a node, of the left operands of its ranks."""
    operator = getattr(_OPERATORS, kind.name)
    return Local(
        kind,
        "a",
        tuple(columns),
        lambda a, *where: operator(a, b, *where),
        lambda a, *where: _violations(kind, a, b, *where),
    )


def _run(kind: Kind, a: Any, b: Any, group: str, rows: Any = None) -> Any:
    state = Group.of(group)
    key = state.key((kind.name, None if rows is None else tuple(rows)), a, b)
    if (known := state.calls.get(key)) is not None:
        return known(a, b)
    counts = rows_of(rows, a, state.members, gathers=kind.gathers)
    broken = tuple(_violations(kind, a, b, state.members, counts))
    call = call_of(kind, a, b) + (f" with rows {counts}" if kind.takes_rows else "")
    state.refuse(call, broken)
    if a.device.type != "cpu":
        if sum(counts) == 0:
            return a.new_empty((0, b.shape[1]))
        return state.first(key, kind.on_gpu(state, a, b, counts), a, b)
    operation = getattr(ops, kind.name)
    if kind is not _SCATTER:
        return _group_emulated.run(state, call, (a, b), operation)
    n = b.shape[1]
    if n % STORED_COLUMNS:
        b = torch.nn.functional.pad(b, (0, -n % STORED_COLUMNS))
    shapes = [(count, b.shape[1]) for count in counts]
    found = _group_emulated.run(state, call, (a, b), operation, shapes)
    return found[:, :n].contiguous()


def call_of(kind: Kind, a: Any, b: Any) -> str:
    """Return the call, with the sizes that all ranks have in common."""
    k, m, n = (" x ".join(map(str, sizes)) for sizes in (a.shape[1:], a.shape[:1], b.shape[1:]))
    return f"{kind.name} of {a.dtype}, {f'K {k}' if kind.gathers else f'M {m}, N {n}'}"


def _fake(kind: Kind, a: Any, b: Any, group: str, rows: Any = None) -> Any:
    members = Members.of(group)
    counts = rows_of(rows, a, members, gathers=kind.gathers)
    ArgumentError.raise_for(_violations(kind, a, b, members, counts))
    m = sum(counts) if kind.gathers else counts[members.rank] if kind is _SCATTER else a.shape[0]
    return a.new_empty((m, b.shape[1]))


def _violations(
    kind: Kind, a: Any, b: Any, members: Members, rows: Sequence[Any]
) -> Iterator[Violation]:
    yield from unfit_rows("a", a, members, rows, gathers=kind.gathers)
    for name, one in (("a", a), ("b", b)):
        if one.ndim != 2:
            rule = "it is a matrix"
            yield Violation(name, f"of shape {tuple(one.shape)}", rule, "Flatten or reshape it")
        if one.dtype not in _TYPES or one.dtype != a.dtype:
            rule = f"both hold bfloat16 or both float16; a {a.dtype}"
            yield Violation(name, f"a tensor of {one.dtype}", rule, "Convert it")
    if b.device != a.device:
        yield Violation("b", f"on {b.device}", f"a is on {a.device}", "Move it there")
    if a.ndim == b.ndim == 2:
        yield from unequal(a, b)


def unequal(a: Any, b: Any) -> Iterator[Violation]:
    if a.shape[1] != b.shape[0]:
        rule = f"a has {a.shape[1]} columns, so b has as many rows"
        yield Violation("b", f"of shape {tuple(b.shape)}", rule, "For a weight [N, K] pass b.T")
    for name, size in (("K", a.shape[1]), ("N", b.shape[1])):
        if size == 0:
            rule = "a rank without columns cannot take part"
            yield Violation(name, "0", rule, "Leave the rank out of the group")


# --- backward -----------------------------------------------------------------------------------


def _save(kind: Kind, ctx: Any, out: Any, a: Any, b: Any, group: str, rows: Any = None) -> None:
    del out
    needs_a, needs_b, *_ = ctx.needs
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.dtype, ctx.group = a.dtype, group
    ctx.rows = rows_of(rows, a, Members.of(group), gathers=kind.gathers)


def _backward(kind: Kind, ctx: Any, grad: Any) -> tuple[Any, ...]:
    refuse_second_backward(kind.name, "torch's collectives and torch.matmul")
    a, b = ctx.saved_tensors
    grad, group, rows = grad.to(ctx.dtype), ctx.group, ctx.rows
    of_a = of_b = None
    if b is not None:
        of_a = _of_a(kind, grad, b.mT, group, rows)
    if a is not None:
        left = _OPERATORS.all_gather(a, group, rows) if kind.gathers else a
        right = _OPERATORS.all_gather(grad, group, rows) if kind is _SCATTER else grad
        of_b = _OPERATORS.matmul(left.mT, right)
    return (of_a, of_b, None, None)[: 4 if kind.takes_rows else 3]


def _of_a(kind: Kind, grad: Any, b: Any, group: str, rows: Any) -> Any:
    """Return the gradient of a; ``b`` is transposed."""
    if kind is _GATHER:
        return _OPERATORS.matmul_reduce_scatter(grad, b, group, rows)
    if kind is _SCATTER:
        return _OPERATORS.all_gather_matmul(grad, b, group, rows)
    return _OPERATORS.matmul(grad, b)


for _kind in (_GATHER, _SCATTER, _REDUCE):
    _arguments = "Tensor a, Tensor b, str group" + ", SymInt[]? rows=None" * _kind.takes_rows
    define_with_backward(
        _kind.name,
        _arguments,
        functools.partial(_run, _kind),
        functools.partial(_fake, _kind),
        functools.partial(_save, _kind),
        functools.partial(_backward, _kind),
    )
    register_autocast(_kind.name, operands=2)
