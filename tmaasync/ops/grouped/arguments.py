"""What a product of groups is given: its rules."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.ops._results import empty_rows

__all__ = ["check_operands", "check_output", "new_output"]

_OPERANDS = ("bfloat16", "float16")
_OUTPUTS = ("bfloat16", "float16", "float32")


def check_operands(a: ArrayView, b: ArrayView) -> None:
    """Refuse operands that do not make a product."""
    for name, view, axes in (("a", a, "[T, K]"), ("b", b, "[G, K, N]")):
        if view.ndim != axes.count(",") + 1:
            raise ArgumentError(
                f"{name} has shape {view.shape}; it must be {axes}: the groups' rows one after the "
                "other in a, one matrix for each in b. Reshape it."
            )
        if view.element.name not in _OPERANDS:
            raise ArrayTypeError(
                f"{name} holds {view.element}; the kernel multiplies {' and '.join(_OPERANDS)}. "
                "Convert it with astype."
            )
    if a.element is not b.element or a.device != b.device:
        raise ArgumentError(
            f"b holds {b.element} on device {b.device}; a holds {a.element} on device {a.device}. "
            "Convert or move one of them."
        )
    if a.shape[1] != b.shape[1] or a.shape[1] == 0:
        raise ArgumentError(
            f"b has shape {b.shape}; a has shape {a.shape}, so b must be [G, {a.shape[1]}, N], and "
            "K at least 1. For matrices stored as [G, N, K] pass b with its last two axes swapped."
        )


def new_output(a: ArrayView, b: ArrayView, dtype: object) -> Any:
    """An array for the product, uninitialised, whose rows TMA can write."""
    of = a.element if dtype is None else element(dtype)
    if of.name not in _OUTPUTS:
        raise ArrayTypeError(f"dtype is {of}; the output can be {', '.join(_OUTPUTS)}. Pass one.")
    return empty_rows(a, (a.shape[0], b.shape[2]), of)


def check_output(out: ArrayView, a: ArrayView, b: ArrayView, dtype: object) -> None:
    """Refuse an output that is not the product's."""
    _arrays.require_writable(out, "out")
    shape = (a.shape[0], b.shape[2])
    if out.shape != shape or out.device != a.device:
        raise ArgumentError(
            f"out has shape {out.shape} on device {out.device}; the product has shape {shape} on "
            f"device {a.device}. Pass such an array, or none to get one."
        )
    wanted: Element | None = None if dtype is None else element(dtype)
    if out.element.name not in _OUTPUTS or wanted not in {None, out.element}:
        raise ArrayTypeError(
            f"out holds {out.element}; it must hold {wanted or ' or '.join(_OUTPUTS)}. "
            "Leave out dtype= or out=."
        )
    for name, view in (("a", a), ("b", b)):
        if _arrays.may_overlap(out, view):
            raise ArgumentError(
                f"out overlaps {name} (at {out.address:#x} and {view.address:#x}); the order of "
                "tiles is not defined. Pass an array of its own."
            )
