"""The two operations, and what their arrays must be."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._ragged.batch import MAX_ROWS
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._results import empty
from tmaasync.ops.ragged.lengths import Limits, Sums
from tmaasync.ops.ragged.plans import launch, launch_again

__all__ = ["ragged_load", "ragged_store"]


def ragged_store(
    padded: Any,
    lengths: Any = None,
    out: Any = None,
    *,
    cu_seqlens: Any = None,
    check: bool = False,
    stream: object = None,
) -> Any:
    """Pack the sequences of a padded batch one after the other, without what pads them.

    On the arrays' GPU, or, in host memory, on the emulator.

    Args:
        padded: An array of shape (batch, max_length, last), with up to two more dimensions (heads,
            groups) in front of the last. What lies contiguously in memory of a row takes a multiple
            of 16 bytes.
        lengths: Rows of each sequence: ints or an array of integers, in host memory or on the
            padded array's device.
        out: Where to: an array of shape (total_rows, ...) whose rows are those of the padded one.
            Rows behind the last sequence are left alone. By default a new one of just the rows
            needed, for which the lengths have to be in host memory.
        cu_seqlens: In place of the lengths, their running sums: 0 first, the total last.
        check: Whether to check lengths on a device too, which waits for them. Unchecked, sequences
            longer than ``max_length`` are cut and those beyond the end of ``out`` dropped; with
            ``TMAASYNC_DEBUG=1`` the kernel traps.
        stream: By default the current stream of the arrays' framework.

    Returns:
        ``out``.

    Raises:
        ArgumentError: The lengths describe no such batch, or shapes, types or devices differ.
        TensorMapError: TMA cannot reach the rows; every rule is listed with a remedy.

    >>> import numpy as np
    >>> padded = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    >>> ragged_store(padded, [1, 2])[:, 0]
    array([ 0., 12., 16.], dtype=float32)
    """
    if out is not None and not check:
        known = launch_again("ragged_store", out, padded, lengths, cu_seqlens, None, stream)
        if known:
            return out
    view = _arrays.view(padded, argument="padded")
    _check_rank("padded", view, 3)
    batch, max_length, *row = view.shape
    target = None if out is None else _arrays.view(out, argument="out")
    limits = Limits(max_length, target.shape[0] if target is not None else None)
    sums = Sums.of(lengths, cu_seqlens, view.device, limits, check=check)
    if sums.batch != batch:
        raise ArgumentError(
            f"{sums.name} describes {sums.batch} sequences; padded has {batch}. Pass one per "
            "sequence."
        )
    if target is None:
        out = empty(view, (sums.known("total", "out", "rows"), *row), view.element)
        target = _arrays.view(out, argument="out")
    _check_output(target, view, (target.shape[0], *row))
    if not target.is_empty and not view.is_empty:
        launch("ragged_store", target, view, sums, None, stream)
    return out


def ragged_load(
    packed: Any,
    lengths: Any = None,
    out: Any = None,
    *,
    cu_seqlens: Any = None,
    max_length: int | None = None,
    check: bool = False,
    stream: object = None,
) -> Any:
    """Spread packed sequences out into a padded batch, with zeros behind each of them.

    On the arrays' GPU, or, in host memory, on the emulator.

    Args:
        packed: An array of shape (total_rows, last), with up to two more dimensions (heads, groups)
            in front of the last. What lies contiguously in memory of a row takes a multiple of 16
            bytes. Rows behind the last sequence are not looked at.
        lengths: Rows of each sequence: ints or an array of integers, in host memory or on the
            packed array's device.
        out: Where to: an array of shape (batch, max_length, ...) whose rows are those of the packed
            one. By default a new one.
        cu_seqlens: In place of the lengths, their running sums: 0 first, the total last.
        max_length: Rows of the padded array. By default those of ``out``, else of the longest
            sequence, for which the lengths have to be in host memory.
        check: Whether to check lengths on a device too, which waits for them. Unchecked, sequences
            longer than ``max_length`` are cut, and those beyond the end of ``packed`` read as
            zeros; with ``TMAASYNC_DEBUG=1`` the kernel traps.
        stream: By default the current stream of the arrays' framework.

    Returns:
        ``out``.

    Raises:
        ArgumentError: The lengths describe no such batch, or shapes, types or devices differ.
        TensorMapError: TMA cannot reach the rows; every rule is listed with a remedy.

    >>> import numpy as np
    >>> packed = np.ones((3, 4), np.float32)
    >>> ragged_load(packed, [1, 2])[:, :, 0]
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    if out is not None and not check:
        known = launch_again("ragged_load", packed, out, lengths, cu_seqlens, max_length, stream)
        if known:
            return out
    asked = max_length
    view = _arrays.view(packed, argument="packed")
    _check_rank("packed", view, 2)
    rows, *row = view.shape
    target = None if out is None else _arrays.view(out, argument="out")
    if target is not None and max_length is None:
        _check_rank("out", target, 3)
        max_length = target.shape[1]
    _check_max_length(max_length)
    limits = Limits(max_length, rows)
    sums = Sums.of(lengths, cu_seqlens, view.device, limits, check=check)
    if max_length is None:
        max_length = sums.known("longest", "max_length", "the longest sequence")
    shape = (sums.batch, max_length, *row)
    if target is None:
        out = empty(view, shape, view.element)
        target = _arrays.view(out, argument="out")
    _check_output(target, view, shape)
    if view.is_empty:
        owner: Any = target.owner
        owner[...] = 0
    elif not target.is_empty:
        launch("ragged_load", view, target, sums, asked, stream)
    return out


# --- what the arrays must be ------------------------------------------------------------------


def _check_rank(name: str, view: ArrayView, least: int) -> None:
    if view.ndim < least:
        leading = "(batch, max_length" if least == 3 else "(total_rows"
        rule = f"it must have the shape {leading}, ..., last): a row is at least one dimension"
        raise ArgumentError(
            str(
                Violation(
                    f"{name}.shape",
                    view.shape,
                    rule,
                    f"Reshape {name}, last dimension 16 bytes or more",
                )
            )
        )


def _check_max_length(max_length: object) -> None:
    if max_length is None:
        return
    is_integer = hasattr(max_length, "__index__") and not isinstance(max_length, bool)
    if not is_integer or not 0 <= max_length <= MAX_ROWS:  # type: ignore[operator]
        rule = "it must be an integer of 0 or more, and fit 32 bits"
        remedy = "Pass the rows of the longest sequence"
        raise ArgumentError(str(Violation("max_length", repr(max_length), rule, remedy)))


def _check_output(out: ArrayView, given: ArrayView, shape: tuple[int, ...]) -> None:
    _arrays.require_writable(out, "out")
    expected = {"shape": shape, "element": given.element, "device": given.device}
    for what, wanted in expected.items():
        if getattr(out, what) != wanted:
            raise ArgumentError(
                f"out has {what} {getattr(out, what)}; it must be {wanted}. Pass such an array, or "
                "none to get one."
            )
    if _arrays.may_overlap(out, given):
        raise ArgumentError(
            f"out overlaps the other array (at {out.address:#x} and {given.address:#x}); the order "
            "of tiles is not defined. Pass an array of its own."
        )
