"""The operators ``tmaasync::copy``, ``reduce_add``, ``ragged_store`` and ``ragged_load``."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync import ops
from tmaasync._kinds import check_integers
from tmaasync._torch_internals import known_size
from tmaasync.errors import ArgumentError
from tmaasync.ops import _copy, _ragged, _reduce_add
from tmaasync.ops._allocation import empty
from tmaasync.torch._plain import is_symbolic
from tmaasync.torch._registry import define, define_in_place
from tmaasync.torch._stand_ins import stand_ins
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none


def copy(source: Any, *, out: Any = None) -> Any:
    """Copy a tensor with TMA.

    This is `tmaasync.ops.copy` as the operator ``torch.ops.tmaasync.copy``. It has no backward.

    Args:
        source: As in `tmaasync.ops.copy`.
        out: The destination; by default a new contiguous tensor.

    Returns:
        The destination.
    """
    require_tensors(source=source)
    require_tensors_or_none(out=out)
    if out is None:
        return torch.ops.tmaasync.copy.default(source)
    torch.ops.tmaasync.copy.out(source, out=out)
    return out


def reduce_add(target: Any, source: Any) -> Any:
    """Add a tensor to another in place, ``target += source``, by TMA reduction.

    This is `tmaasync.ops.reduce_add` as the operator ``torch.ops.tmaasync.reduce_add``, which
    returns nothing. It has no backward.

    Args:
        target: As in `tmaasync.ops.reduce_add`.
        source: A tensor like ``target``, or a stack of them.

    Returns:
        The target.
    """
    require_tensors(target=target, source=source)
    torch.ops.tmaasync.reduce_add(target, source)
    return target


def ragged_store(padded: Any, cu_seqlens: Any, total_rows: int, *, out: Any = None) -> Any:
    """Pack the sequences of a padded batch back to back, without their padding.

    This is `tmaasync.ops.ragged_store` as the operator ``torch.ops.tmaasync.ragged_store``. It has
    no backward.

    Args:
        padded: [batch, max_length, ..., last].
        cu_seqlens: Cumulative lengths of the sequences, a tensor of integers.
        total_rows: Rows of the output.
        out: The output, [total_rows, ..., last].

    Returns:
        The output. Rows after the last sequence are zeros in a new output; in ``out`` they are not
        written.
    """
    require_tensors(padded=padded, cu_seqlens=cu_seqlens)
    require_tensors_or_none(out=out)
    if not is_symbolic(total_rows):
        check_integers(total_rows=total_rows)
        _check_total_rows(total_rows, out)
    if out is None:
        return torch.ops.tmaasync.ragged_store.default(padded, cu_seqlens, total_rows)
    torch.ops.tmaasync.ragged_store.out(padded, cu_seqlens, total_rows, out=out)
    return out


def ragged_load(packed: Any, cu_seqlens: Any, max_length: int, *, out: Any = None) -> Any:
    """Unpack sequences into a padded batch, with zeros after each sequence.

    This is `tmaasync.ops.ragged_load` as the operator ``torch.ops.tmaasync.ragged_load``. It has no
    backward.

    Args:
        packed: [total_rows, ..., last].
        cu_seqlens: Cumulative lengths of the sequences, a tensor of integers.
        max_length: Rows per sequence in the output.
        out: The output, [batch, max_length, ..., last].

    Returns:
        The output.
    """
    require_tensors(packed=packed, cu_seqlens=cu_seqlens)
    require_tensors_or_none(out=out)
    if not is_symbolic(max_length):
        _ragged.check_max_length(max_length)
    if out is None:
        return torch.ops.tmaasync.ragged_load.default(packed, cu_seqlens, max_length)
    torch.ops.tmaasync.ragged_load.out(packed, cu_seqlens, max_length, out=out)
    return out


# --- kernels and fake kernels -------------------------------------------------------------------


def _run_copy(source: Any, *, out: Any = None) -> Any:
    return ops.copy(source, out)


def _fake_copy(source: Any, *, out: Any = None) -> Any:
    views = stand_ins(source=source, target=out)
    if views is not None:
        view, target = views["source"], views["target"]
        if target is None:
            target = empty(view, view.shape, view.element)
        target = _copy.checked_target(target, view)
        _copy.check_reach(view, target)
    return source.new_empty(source.shape)


def _run_store(padded: Any, cu_seqlens: Any, total_rows: int, *, out: Any = None) -> Any:
    _check_total_rows(total_rows, out)
    if out is None:
        out = padded.new_zeros(total_rows, *padded.shape[2:])
    return ops.ragged_store(padded, out=out, cu_seqlens=cu_seqlens)


def _check_total_rows(total_rows: int | None, out: Any) -> None:
    if total_rows is not None and total_rows < 0:
        raise ArgumentError.broken(
            "total_rows", total_rows, "it must be 0 or more", "Pass the rows of the output"
        )
    rows = known_size(out.shape[0]) if out is not None and out.dim() else total_rows
    if total_rows is not None and rows not in (None, total_rows):
        raise ArgumentError.broken("total_rows", total_rows, f"out has {rows} rows", "Pass as many")


def _fake_store(padded: Any, cu_seqlens: Any, total_rows: int, *, out: Any = None) -> Any:
    _check_total_rows(known_size(total_rows), out)
    made = padded.new_empty(total_rows, *padded.shape[2:])
    views = stand_ins(padded=padded, cu_seqlens=cu_seqlens, out=made if out is None else out)
    if views is not None:
        view, _, _, target = _ragged.checked_store(lengths=None, **views)
        _ragged.check_reach("ragged_store", target, view)
    return made


def _run_load(packed: Any, cu_seqlens: Any, max_length: int, *, out: Any = None) -> Any:
    return ops.ragged_load(packed, out=out, cu_seqlens=cu_seqlens, max_length=max_length)


def _fake_load(packed: Any, cu_seqlens: Any, max_length: int, *, out: Any = None) -> Any:
    views, length = stand_ins(packed=packed, cu_seqlens=cu_seqlens, out=out), known_size(max_length)
    if views is not None and length is not None:
        view, _, _, target = _ragged.checked_load(lengths=None, max_length=length, **views)
        _ragged.check_reach("ragged_load", view, target)
    return packed.new_empty(cu_seqlens.shape[0] - 1, max_length, *packed.shape[1:])


def _fake_add(target: Any, source: Any) -> None:
    views = stand_ins(source=source, target=target)
    if views is not None:
        view, target = views["source"], _reduce_add.checked_target(views["target"], views["source"])
        _reduce_add.check_reach(view, target)


define("copy", "Tensor source", _run_copy, _fake_copy)
define_in_place("reduce_add", "Tensor(a!) target, Tensor source", ops.reduce_add, _fake_add)
define(
    "ragged_store",
    "Tensor padded, Tensor cu_seqlens, SymInt total_rows",
    _run_store,
    _fake_store,
)
define(
    "ragged_load",
    "Tensor packed, Tensor cu_seqlens, SymInt max_length",
    _run_load,
    _fake_load,
)
