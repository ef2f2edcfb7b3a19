"""Which types matmul multiplies, and which it gives."""

from __future__ import annotations

from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError, ArrayTypeError

__all__ = ["Reading", "outputs_of", "require_pair", "takes_any_layout"]

_SIXTEEN_BITS = {"bfloat16", "float16"}
_FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}
_INTEGERS = {"int8", "uint8"}
_FAMILIES = (_FLOAT8, _INTEGERS)  # the tensor cores multiply any two of one
_OPERANDS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")
_FLOATS = ("bfloat16", "float16", "float32")


def takes_any_layout(of: Element) -> bool:
    """Whether either side of an operand of this type may be contiguous; else it must be K."""
    return of.name in _SIXTEEN_BITS


def outputs_of(of: Element) -> tuple[str, ...]:
    """Return the types that the output may have, by that of A, the default first."""
    if of.name in _INTEGERS:
        return ("int32",)
    if of.name == "tfloat32":
        return ("float32", "bfloat16", "float16")
    return ("float16", "bfloat16", "float32") if of.name == "float16" else _FLOATS


def require_pair(a: Element, b: Element) -> None:
    """Check that the tensor cores multiply two operands.

    Raises:
        ArrayTypeError: One has a type that they do not multiply.
        ArgumentError: The types do not go together.
    """
    for name, of in (("a", a), ("b", b)):
        if of.name == "float32":
            raise ArrayTypeError(
                f"{name} holds float32; the tensor cores round that to tf32, 10 bits of fraction. "
                'Ask for it with precision="tf32", or convert it with astype.'
            )
        if of.name not in {*_OPERANDS, "tfloat32"}:
            raise ArrayTypeError(
                f"{name} holds {of}; the kernel multiplies {', '.join(_OPERANDS)}, and float32 "
                'with precision="tf32". Convert it with astype.'
            )
    if a is not b and not any({a.name, b.name} <= family for family in _FAMILIES):
        raise ArgumentError(
            f"b holds {b} and a {a}; the tensor cores multiply two of one type, two float8, or two "
            "8-bit integers. Convert one of them."
        )


class Reading(NamedTuple):
    """The types that the caller gives for the operands; None for those of the arrays."""

    a: Element | None = None
    b: Element | None = None
    precision: str | None = None

    @classmethod
    def given(cls, a_dtype: object, b_dtype: object, precision: str | None) -> Reading:
        """Check the arguments.

        Raises:
            ArrayTypeError: There is no such type.
            ArgumentError: There is no such precision.
        """
        if precision not in (None, "tf32"):
            raise ArgumentError(
                f'precision is {precision!r}; it can be "tf32", of float32 operands. '
                "Leave it out for any others."
            )
        a = None if a_dtype is None else element(a_dtype, argument="a_dtype")
        b = None if b_dtype is None else element(b_dtype, argument="b_dtype")
        return cls(a, b, precision)

    def of(self, view: ArrayView) -> ArrayView:
        """Return the operand as it is multiplied: float32 as tf32."""
        if self.precision is None or view.element.name != "float32":
            return view
        return view._replace(element=element("tfloat32"))
