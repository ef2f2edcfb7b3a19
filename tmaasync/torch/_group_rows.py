"""Operations of a process group, and the rows of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from tmaasync import _arrays
from tmaasync._kinds import as_int, is_integer, shown
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._ranks import MAX_RANKS, even_shards
from tmaasync.torch._group import Members

_INTEGERS = {int, torch.SymInt}


class Kind(NamedTuple):
    """An operation of a group: a gather, a scatter or a reduction, alone or with a matmul.

    Attributes:
        name: As in `tmaasync.ops`.
        on_gpu: Takes the group, the operands, and the rows of all ranks; returns the `Call`.
        takes_rows: Whether ``rows`` are an argument.
        gathers: Whether the first operand has this rank's rows.
    """

    name: str
    on_gpu: Callable[..., Any]
    takes_rows: bool
    gathers: bool


def checked_rows(rows: Any) -> Any:
    """Return a caller's rows, before torch's dispatcher refuses other kinds in its own words.

    Raises:
        ArgumentError: They are not integers.
    """
    if rows is None or is_compiling():
        return rows
    if type(rows) in (list, tuple) and _INTEGERS.issuperset(map(type, rows)):
        return rows  # 0.3 us
    if isinstance(rows, torch.fx.Proxy):
        return rows
    try:
        values = [as_int(one) for one in rows]
    except TypeError:  # it cannot be iterated
        values = [None]
    if not all(map(is_integer, values)):
        rule = "they are integers, one for each rank"
        raise ArgumentError.broken("rows", shown(rows), rule, "Pass the rows of each rank")
    return values


def rows_of(rows: Any, tensor: Any, members: Members, *, gathers: bool) -> list[Any]:
    """Return the rows of every rank; by default as many as here, or the tensor's divided evenly.

    Args:
        rows: The caller's, or None.
        tensor: This rank's.
        members: Of the group.
        gathers: Whether the tensor has this rank's rows, or all.
    """
    if rows is not None:
        return list(rows)
    m, count = tensor.shape[0] if tensor.ndim else 0, members.size
    return [m] * count if gathers else even_shards(m, count)


def unfit_group(members: Members) -> Iterator[Violation]:
    if members.size > MAX_RANKS:
        rule = f"it has 1 to {MAX_RANKS} ranks, with a GPU each"
        yield Violation("group", f"of {members.size} ranks", rule, "Pass a smaller group")


def lost_derivatives(tensors: dict[str, Any]) -> Iterator[Violation]:
    """Yield the rules that tensors of an operator without a backward break.

    Known calls need no check: tensors with a derivative have no `Group.key`.
    """
    for name, one in tensors.items():
        try:
            _arrays.require_no_derivative(one, name)
        except ArgumentError as error:
            yield from error.violations


def unfit_rows(
    name: str, tensor: Any, members: Members, rows: Sequence[Any], *, gathers: bool | None
) -> Iterator[Violation]:
    """Yield the rules that a group and its rows break; see `rows_of`.

    With ``gathers=None`` they are not rows of the tensor.
    """
    yield from unfit_group(members)
    yield from unfit_counts(name, tensor, members, rows, gathers=gathers)


def unfit_counts(
    name: str, tensor: Any, members: Members, rows: Sequence[Any], *, gathers: bool | None
) -> Iterator[Violation]:
    """Yield the rules that rows break; see `unfit_rows`."""
    count = members.size
    if len(rows) != count:
        rule = f"it has the rows of each of {count} ranks"
        yield Violation("rows", f"a list of {len(rows)}", rule, "Pass a number for each rank")
        return
    if any(one < 0 for one in rows):
        yield Violation("rows", list(rows), "a rank has 0 rows or more", "Pass sizes of shards")
    if not tensor.ndim or gathers is None:
        return
    m = tensor.shape[0]
    if gathers and rows[members.rank] != m:
        rule = f"rows[{members.rank}] is {rows[members.rank]}, and that is this rank"
        yield Violation(name, f"of {m} rows", rule, "Pass the same list on all ranks")
    if not gathers and sum(rows) != m:
        rule = f"they divide the {m} rows of {name}"
        yield Violation("rows", list(rows), rule, "Pass shards of as many rows in all")
