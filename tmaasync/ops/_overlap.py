"""Whether an operation would write what it reads."""

from __future__ import annotations

from collections.abc import Mapping

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError

__all__ = ["refuse_overlap"]


def refuse_overlap(out: ArrayView, given: Mapping[str, ArrayView]) -> None:
    """Check that no operand, by the name of its argument, shares memory with the output.

    Parts of the rows of one array, side by side, do not.

    Raises:
        ArgumentError: One does.
    """
    for name, view in given.items():
        if _arrays.may_overlap(out, view) and not _lie_side_by_side(out, view):
            raise ArgumentError(
                f"out overlaps {name} (at {out.address:#x} and {view.address:#x}); the order of "
                "tiles is not defined. Pass an array of its own."
            )


def _lie_side_by_side(out: ArrayView, view: ArrayView) -> bool:
    """Whether both are parts of equally long lines, and not the same ones."""
    return any(pitch > 0 and _fit_in_lines(out, view, pitch) for pitch in out.strides_bytes)


def _fit_in_lines(out: ArrayView, view: ArrayView, pitch: int) -> bool:
    gap = (view.address - out.address) % pitch
    return _line_bytes(out, pitch) <= gap and gap + _line_bytes(view, pitch) <= pitch


def _line_bytes(view: ArrayView, pitch: int) -> int:
    """What an array takes of each line; more than there is, where it does not lie in lines."""
    pairs = zip(view.shape, view.strides_bytes, strict=True)
    inner = [(size, stride) for size, stride in pairs if stride % pitch]
    if any(stride < 0 for _, stride in inner):
        return pitch + 1
    return sum((size - 1) * stride for size, stride in inner) + view.element.itemsize
