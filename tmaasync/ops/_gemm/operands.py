"""The operands of ops.matmul: legal types and matching shapes."""

from __future__ import annotations

from typing import NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync._kinds import check_flags, is_one_of, shown
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.ops._extents import check_extents
from tmaasync.ops._layouts import Layout

_SIXTEEN_BITS = {"bfloat16", "float16"}
_FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}
_INTEGERS = {"int8", "uint8"}
_FAMILIES = (_FLOAT8, _INTEGERS)  # the tensor cores multiply any two types of one family
_OPERANDS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")
_FLOATS = ("bfloat16", "float16", "float32")


def takes_any_layout(of: Element) -> bool:
    """Return whether either side of an operand of this type may be contiguous, not only K."""
    return of.name in _SIXTEEN_BITS


def outputs_of(of: Element) -> tuple[str, ...]:
    """Return the output types for a type of A, the default first."""
    if of.name in _INTEGERS:
        return ("int32",)
    if of.name == "tfloat32":
        return ("float32", "bfloat16", "float16")
    return ("float16", "bfloat16", "float32") if of.name == "float16" else _FLOATS


def _require_pair(a: Element, b: Element) -> None:
    for name, of in (("a", a), ("b", b)):
        if of.name == "float32":
            raise ArrayTypeError.broken(
                name,
                "float32",
                "the tensor cores round that to tf32, 10 bits of fraction",
                'Ask for it with precision="tf32", or convert it with astype',
                verb="holds",
            )
        if of.name not in {*_OPERANDS, "tfloat32"}:
            raise ArrayTypeError.broken(
                name,
                of,
                f'the kernel multiplies {", ".join(_OPERANDS)}, and float32 with precision="tf32"',
                "Convert it with astype",
                verb="holds",
            )
    if a is not b and not any({a.name, b.name} <= family for family in _FAMILIES):
        raise ArgumentError.broken(
            "b",
            f"{b} and a {a}",
            "the tensor cores multiply two of one type, two float8, or two 8-bit integers",
            "Convert one of them",
            verb="holds",
        )


class Reading(NamedTuple):
    """The types to read the operands as, None for an array's own, and whether K stays whole."""

    a: Element | None = None
    b: Element | None = None
    precision: str | None = None
    batch_invariant: bool = False

    @classmethod
    def given(
        cls,
        a_dtype: object,
        b_dtype: object,
        precision: str | None,
        batch_invariant: bool,
    ) -> Reading:
        check_flags(batch_invariant=batch_invariant)
        if precision is not None and not is_one_of(precision, ("tf32",)):
            raise ArgumentError.broken(
                "precision",
                shown(precision),
                'it can be "tf32", of float32 operands',
                "Leave it out for any others",
            )
        a = None if a_dtype is None else element(a_dtype, argument="a_dtype")
        b = None if b_dtype is None else element(b_dtype, argument="b_dtype")
        return cls(a, b, precision, batch_invariant)

    def of(self, view: ArrayView, argument: str) -> ArrayView:
        """Return the operand with the type of the multiplication: float32 as tf32."""
        if self.precision is None:
            return view
        if view.element.name != "float32":
            raise ArgumentError.broken(
                "precision",
                f"{shown(self.precision)} and {argument} holds {view.element}",
                "it is how float32 operands are rounded, and others are not",
                "Leave it out",
            )
        return view._replace(element=element("tfloat32"))


AS_THEY_ARE = Reading()


# --- shapes -------------------------------------------------------------------------------------


def output_shape(a: Layout, b: Layout) -> tuple[int, ...]:
    """Return [M, N], or [B, M, N] if either operand is a batch."""
    batches = [matrix.shape[0] for matrix in (a, b) if len(matrix.shape) == 3]
    # A batch of one is broadcast to any other size, including zero.
    batch = next((size for size in batches if size != 1), 1)
    return (*(batch for _ in batches[:1]), a.shape[-2], b.shape[-1])


def check_operands(a: Layout, b: Layout) -> None:
    _require_matrix("a", a)
    _require_matrix("b", b)
    _require_pair(a.element, b.element)
    if a.device != b.device:
        raise ArgumentError.broken(
            "b",
            _arrays.where(b.device),
            f"a lies {_arrays.where(a.device)}",
            "Move one of them",
            verb="lies",
        )
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError.broken(
            "b",
            b.shape,
            f"a has shape {a.shape}, so b must have {a.shape[-1]} rows",
            "For a matrix stored as [N, K] pass b.T, or b.swapaxes(1, 2) of a batch",
            verb="has shape",
        )
    batches = {matrix.shape[0] for matrix in (a, b) if len(matrix.shape) == 3} - {1}
    if len(batches) > 1:
        raise ArgumentError.broken(
            "b",
            b.shape,
            f"a has shape {a.shape}, so b must be a batch of {a.shape[0]} matrices, or "
            "one matrix for all",
            "Pass one of them",
            verb="has shape",
        )
    check_extents(M=a.shape[-2], N=b.shape[-1], K=a.shape[-1], batch=max(batches, default=1))


def _require_matrix(name: str, matrix: Layout) -> None:
    if len(matrix.shape) in {2, 3}:
        return
    remedy = (
        "Pass a vector as a matrix of one row or column, such as x[None]"
        if len(matrix.shape) < 2
        else "Reshape it, so that all others make up one batch; of torch tensors, "
        "tmaasync.torch.matmul takes any number of batch dimensions"
    )
    raise ArgumentError.broken(
        name, matrix.shape, "it must have 2 dimensions, or 3 as a batch", remedy, verb="has shape"
    )
