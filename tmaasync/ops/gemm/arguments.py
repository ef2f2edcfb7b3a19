"""What a product is given: its rules."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.ops._overlap import refuse_overlap
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.extras import ExtraForm, ExtraViews
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.types import outputs_of, require_pair

__all__ = [
    "check_extras",
    "check_operands",
    "check_output",
    "check_places",
    "new_output",
    "product_shape",
]


def new_output(a: ArrayView, b: ArrayView, dtype: object) -> Any:
    """An array for the product, uninitialised, whose rows TMA can write."""
    check_operands(Matrix.of(a), Matrix.of(b))
    outputs = outputs_of(a.element)
    of = element(outputs[0] if dtype is None else dtype)
    if of.name not in outputs:
        raise ArrayTypeError(
            f"dtype is {of}; a product of {a.element} can be {', '.join(outputs)}. Pass one."
        )
    return empty_rows(a, product_shape(Matrix.of(a), Matrix.of(b)), of)


def product_shape(a: Matrix, b: Matrix) -> tuple[int, ...]:
    """[M, N]; or, if either operand is a batch, [B, M, N]."""
    batches = [matrix.shape[0] for matrix in (a, b) if len(matrix.shape) == 3]
    # A batch of one goes with any other, one of none too.
    batch = next((size for size in batches if size != 1), 1)
    return (*(batch for _ in batches[:1]), a.shape[-2], b.shape[-1])


def check_operands(a: Matrix, b: Matrix) -> None:
    """Refuse operands that do not make a product."""
    for name, matrix in (("a", a), ("b", b)):
        if len(matrix.shape) not in {2, 3}:
            raise ArgumentError(
                f"{name} has shape {matrix.shape}; it must have 2 dimensions, or 3 as a batch. "
                "Reshape it, so that all others make up one batch."
            )
    require_pair(a.element, b.element)
    if a.device != b.device:
        raise ArgumentError(
            f"b lies on device {b.device}; a lies on device {a.device}. Move one of them."
        )
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError(
            f"b has shape {b.shape}; a has shape {a.shape}, so b must have {a.shape[-1]} rows. "
            "For a matrix stored as [N, K] pass b.T, or b.swapaxes(1, 2) of a batch."
        )
    batches = {matrix.shape[0] for matrix in (a, b) if len(matrix.shape) == 3} - {1}
    if len(batches) > 1:
        raise ArgumentError(
            f"b has shape {b.shape}; a has shape {a.shape}, so b must be a batch of {a.shape[0]} "
            "matrices, or one matrix for all."
        )


def check_output(out: Matrix, a: Matrix, b: Matrix, wanted: Element | None) -> None:
    """Refuse an output that is not the product's."""
    shape = product_shape(a, b)
    if out.shape != shape or out.device != a.device:
        raise ArgumentError(
            f"out has shape {out.shape} on device {out.device}; the product has shape {shape} on "
            f"device {a.device}. Pass such an array, or none to get one."
        )
    outputs = outputs_of(a.element)
    if out.element.name not in outputs or wanted not in {None, out.element}:
        raise ArrayTypeError(
            f"out holds {out.element}; it must hold {wanted or ' or '.join(outputs)}. "
            "Leave out dtype= or out=."
        )


def check_extras(extras: ExtraForm, a: Matrix, out: Matrix) -> None:
    """Refuse an addend or a bias that does not fit the product."""
    if out.element.name == "int32":
        raise ArgumentError(
            f"a holds {a.element}, whose products are stored as they are summed, in int32. "
            "Leave out alpha, c, bias, activation and the scales."
        )
    addend, bias = extras.addend, extras.bias
    if addend is not None and (addend.shape != out.shape or addend.device != out.device):
        raise ArgumentError(
            f"c has shape {addend.shape} on device {addend.device}; the product has shape "
            f"{out.shape} on device {out.device}. Pass such an array."
        )
    if addend is not None and addend.element is not out.element:
        raise ArrayTypeError(
            f"c holds {addend.element}; it must hold {out.element} as the output does. Convert it, "
            "or pass dtype=."
        )
    if bias is not None and (bias.shape != out.shape[-1:] or bias.device != out.device):
        raise ArgumentError(
            f"bias has shape {bias.shape} on device {bias.device}; the product has shape "
            f"{out.shape} on device {out.device}, so bias must be {out.shape[-1:]} there: one "
            "number for each column."
        )
    types = {"float32", out.element.name, *({a.element.name} & set(outputs_of(a.element)))}
    if bias is not None and bias.element.name not in types:
        raise ArrayTypeError(
            f"bias holds {bias.element}; it must hold {' or '.join(sorted(types))}. Convert it."
        )


def check_places(out: ArrayView, a: ArrayView, b: ArrayView, more: ExtraViews) -> None:
    """Refuse an output that overlaps what is read, unless it is the addend, and other devices."""
    _arrays.common_device({"out": out, **more.given})
    given = {"a": a, "b": b, **more.given}
    c = more.c
    if c is not None and c.address == out.address and c.strides_bytes == out.strides_bytes:
        del given["c"]
    refuse_overlap(out, given)
