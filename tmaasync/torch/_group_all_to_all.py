"""Ragged all-to-all over a process group: MoE dispatch and combine, each the other's backward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tmaasync import ops
from tmaasync._elements import element
from tmaasync._kinds import check_flags, check_integers
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._all_to_all import MAX_EXPERTS
from tmaasync.torch import _group_emulated, _group_kernels
from tmaasync.torch._group import Group, Members, name_of
from tmaasync.torch._group_rows import checked_rows, rows_of, unfit_rows
from tmaasync.torch._plain import is_symbolic
from tmaasync.torch._registry import define, refuse_second_backward, register_backward
from tmaasync.torch._tensors import require_tensors


def all_to_all(
    tensor: Any,
    counts: Any,
    *,
    group: Any = None,
    rows: Sequence[int] | None = None,
    room: int | None = None,
    combine: bool = False,
) -> Any:
    """Send this rank's tokens to the owners of their experts (MoE dispatch), or back (combine).

    This is `tmaasync.ops.all_to_all` for one process per GPU, as the operator
    ``torch.ops.tmaasync.all_to_all``. It is differentiable: a combine is the backward of a
    dispatch, and a dispatch of a combine. The kernel stores into memory that ranks share, and costs
    zeros there and a copy of the output. Otherwise as `all_gather_matmul`.

    Args:
        tensor: For a dispatch this rank's tokens [M_r, ...], in the order of their experts; for a
            combine packed rows [room, ...], by expert, then by the rank they came from. Of two
            dimensions or more.
        counts: int32 [E]: how many of this rank's tokens go to each expert; rank r owns the experts
            from r E / P on. They stay on the GPU. For a combine, the counts of the dispatch.
        group: A process group, as in `all_gather_matmul`.
        rows: M_r of every rank, the same list on all of them. By default all ranks have as many
            tokens as this one; a combine requires it.
        room: For a dispatch, the rows of the output, the same on all ranks. Rows without room are
            dropped.
        combine: Send packed rows back to the rows of their tokens.

    Returns:
        For a dispatch the packed rows [room, ...], and the row at which each own expert ends, int32
        [E / P], as `grouped_matmul` takes them; for a combine the tokens [M_r, ...]. Rows that
        receive nothing are zero.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(tensor=tensor, counts=counts)
    check_flags(combine=combine)
    operator = torch.ops.tmaasync.all_to_all
    if not (room is None or type(room) is int or is_symbolic(room)):
        check_integers(room=room)
    out, ends = operator(tensor, counts, name_of(group), checked_rows(rows), room, combine)
    return out if combine else (out, ends)


# --- kernels and fake kernels -------------------------------------------------------------------


def _run(
    tensor: Any, counts: Any, group: str, rows: Any = None, room: Any = None, combine: bool = False
) -> Any:
    state = Group.of(group)
    options = None if rows is None else tuple(rows), room, combine
    key = state.key(("all_to_all", *options), tensor, counts)
    if (known := state.calls.get(key)) is not None:
        return known(tensor, counts)
    broken = tuple(_violations(tensor, counts, state.members, rows, room, combine))
    every, room = _sizes(tensor, state.members, rows, room, combine)
    name = "combine" if combine else "dispatch"
    sizes = f"{tuple(tensor.shape[1:])}, {counts.numel()} experts, rows {every}, room {room}"
    call = f"all_to_all ({name}) of {tensor.dtype}, {sizes}"
    state.refuse(call, broken)
    if tensor.device.type == "cpu":
        return _on_cpu(state, call, tensor, counts, [every, room, combine])
    if sum(every) == 0:
        return _zeros(tensor, counts, state.members, every, room, combine)
    made = _group_kernels.all_to_all(state, call, tensor, counts, every, room, combine=combine)
    return state.first(key, made, tensor, counts)


def _on_cpu(state: Group, call: str, tensor: Any, counts: Any, sizes: Sequence[Any]) -> Any:
    every, room, combine = sizes
    matrix = _group_emulated.as_matrix(tensor, math.prod(tensor.shape[1:]))
    received = every if combine else [room] * state.count
    ends = counts.new_zeros(counts.numel() // state.count)

    def operation(arrays: Any, counts: Any, ends: Any, out: Any) -> Any:
        ops.all_to_all(arrays, counts, out, combine=combine, ends=None if combine else ends)
        return out, ends

    shapes = [(count, matrix.shape[1]) for count in received]
    tensors = matrix, counts, ends
    found, ends = _group_emulated.run(state, call, tensors, operation, shapes)
    out = _group_emulated.without_padding(found, (found.shape[0], *tensor.shape[1:]))
    return out, ends[:0] if combine else ends


def _fake(
    tensor: Any, counts: Any, group: str, rows: Any = None, room: Any = None, combine: bool = False
) -> Any:
    members = Members.of(group)
    ArgumentError.raise_for(_violations(tensor, counts, members, rows, room, combine))
    every, room = _sizes(tensor, members, rows, room, combine)
    return _zeros(tensor, counts, members, every, room, combine)


def _sizes(tensor: Any, members: Members, rows: Any, room: Any, combine: bool) -> tuple[Any, Any]:
    """Return the tokens of every rank, and the packed rows of each."""
    every = rows_of(rows, tensor, members, gathers=True)
    return every, tensor.shape[0] if combine and tensor.ndim else room


def _zeros(
    tensor: Any, counts: Any, members: Members, every: Any, room: Any, combine: bool
) -> tuple[Any, Any]:
    """Return the results of a call in which no row moves."""
    received = every[members.rank] if combine else room
    out = tensor.new_zeros((received, *tensor.shape[1:]))
    return out, counts.new_zeros(0 if combine else counts.shape[0] // members.size)


def _violations(
    tensor: Any, counts: Any, members: Members, rows: Any, room: Any, combine: bool
) -> Iterator[Violation]:
    every, packed = _sizes(tensor, members, rows, room, combine)
    yield from unfit_rows("tensor", tensor, members, every, gathers=None if combine else True)
    try:
        element(tensor.dtype, argument="tensor")
    except ArrayTypeError as error:
        yield from error.violations
    if tensor.ndim < 2 or 0 in tensor.shape[1:]:
        rule = "it has rows of one element or more"
        yield Violation("tensor", f"of shape {tuple(tensor.shape)}", rule, "Reshape it")
    if packed is None or packed < 1:
        rule = "packed rows are one or more"
        yield Violation("room", packed, rule, "Pass how many rows a rank has room for")
    if combine and (rows is None or room is not None):
        rule = "a combine takes rows, and its tensor has the packed rows"
        yield Violation("rows, room", f"{rows}, {room}", rule, "Pass rows alone", verb="are")
    yield from _unfit_counts(tensor, counts, members)


def _unfit_counts(tensor: Any, counts: Any, members: Members) -> Iterator[Violation]:
    if counts.ndim != 1 or counts.dtype != torch.int32 or counts.device != tensor.device:
        rule = f"it holds int32 on {tensor.device}, one for each expert"
        given = f"{counts.dtype} of shape {tuple(counts.shape)} on {counts.device}"
        yield Violation("counts", given, rule, "Convert it", verb="holds")
    elif counts.shape[0] % members.size or not 0 < counts.shape[0] <= MAX_EXPERTS:
        rule = f"{members.size} ranks own equally many experts, up to {MAX_EXPERTS} in all"
        given = f"of {counts.shape[0]} experts"
        yield Violation("counts", given, rule, "Add experts without tokens")


# --- backward -----------------------------------------------------------------------------------


def _save(  # noqa: PLR0913 - the arguments of the operator
    ctx: Any,
    results: Any,
    tensor: Any,
    counts: Any,
    group: str,
    rows: Any = None,
    room: Any = None,
    combine: bool = False,
) -> None:
    _, ends = results
    ctx.mark_non_differentiable(ends)
    ctx.save_for_backward(counts)
    ctx.group, ctx.combine = group, combine
    ctx.rows, ctx.room = _sizes(tensor, Members.of(group), rows, room, combine)


def _backward(ctx: Any, grad: Any, grad_of_ends: Any) -> tuple[Any, ...]:
    del grad_of_ends
    refuse_second_backward("all_to_all", "torch's collectives")
    (counts,) = ctx.saved_tensors
    room = ctx.room if ctx.combine else None
    other = torch.ops.tmaasync.all_to_all.default
    found, _ = other(grad, counts, ctx.group, ctx.rows, room, not ctx.combine)
    return found, None, None, None, None, None


define(
    "all_to_all",
    "Tensor tensor, Tensor counts, str group, SymInt[]? rows=None, SymInt? room=None, "
    "bool combine=False",
    _run,
    _fake,
    returns="(Tensor, Tensor)",
    other_returns=None,
    is_differentiable=True,
)
register_backward("all_to_all", _run, _save, _backward)
