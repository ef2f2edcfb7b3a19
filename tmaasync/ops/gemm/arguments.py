"""What a product is given: its rules."""

from __future__ import annotations

from typing import Any

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.matrix import Matrix

__all__ = ["check_operands", "check_output", "new_output", "product_shape"]

_OPERANDS = ("bfloat16", "float16")
_OUTPUTS = ("bfloat16", "float16", "float32")


def new_output(a: ArrayView, b: ArrayView, dtype: object) -> Any:
    """An array for the product, uninitialised, whose rows TMA can write."""
    check_operands(Matrix.of(a), Matrix.of(b))
    of = a.element if dtype is None else element(dtype)
    if of.name not in _OUTPUTS:
        raise ArrayTypeError(f"dtype is {of}; the output can be {', '.join(_OUTPUTS)}. Pass one.")
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
        if matrix.element.name not in _OPERANDS:
            raise ArrayTypeError(
                f"{name} holds {matrix.element}; the kernel multiplies {' and '.join(_OPERANDS)}. "
                "Convert it with astype."
            )
    if a.element is not b.element or a.device != b.device:
        raise ArgumentError(
            f"b holds {b.element} on device {b.device}; a holds {a.element} on device {a.device}. "
            "Convert or move one of them."
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
    if out.element.name not in _OUTPUTS or wanted not in {None, out.element}:
        raise ArrayTypeError(
            f"out holds {out.element}; it must hold {wanted or ' or '.join(_OUTPUTS)}. "
            "Leave out dtype= or out=."
        )
