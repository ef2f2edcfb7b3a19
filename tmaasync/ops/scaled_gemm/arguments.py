"""What a product with block scales is given: its rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._results import empty_rows
from tmaasync.ops.scaled_gemm.blocking import SCALE_BLOCK, SCALES_PER_LOAD

__all__ = ["Operands", "check_output", "new_output"]

_OPERANDS = ("float8_e4m3fn", "float8_e5m2")
_OUTPUTS = ("bfloat16", "float16", "float32")


class Operands(NamedTuple):
    """The matrices and their scales, checked."""

    a: ArrayView
    b: ArrayView
    scale_a: ArrayView
    scale_b: ArrayView

    @classmethod
    def of(
        cls, a: Any, b: Any, scale_a: Any, scale_b: Any, dtypes: tuple[object, object]
    ) -> Operands:
        """Look at them and check that they fit each other; a and b may be read as given types."""
        a_dtype, b_dtype = dtypes
        found = cls(
            _arrays.view(a, dtype=a_dtype, argument="a"),
            _arrays.view(b, dtype=b_dtype, argument="b"),
            _arrays.view(scale_a, argument="scale_a"),
            _arrays.view(scale_b, argument="scale_b"),
        )
        _refuse([*_rank_violations(found)])
        _check_types(found)
        _arrays.common_device(found.named)
        _refuse([*_shape_violations(found)])
        return found._replace(scale_b=_first_rows(found.scale_b, found.k_blocks))

    @property
    def named(self) -> dict[str, ArrayView]:
        """By the name of their argument."""
        return self._asdict()

    @property
    def shape(self) -> tuple[int, int]:
        """Of the product."""
        return self.a.shape[0], self.b.shape[1]

    @property
    def k_blocks(self) -> int:
        """How many scales lie along K."""
        return -(-self.a.shape[1] // SCALE_BLOCK)

    @property
    def column_scales(self) -> bool:
        """Whether every column of B has scales, not every 128 columns."""
        columns = self.b.shape[1]
        return columns > 1 and self.scale_b.shape[1] == columns


def _first_rows(scales: ArrayView, rows: int) -> ArrayView:
    """Without what torch pads them with along K."""
    owner: Any = scales.owner
    return scales if scales.shape[0] == rows else _arrays.view(owner[:rows])


def _refuse(violations: Sequence[Violation]) -> None:
    if violations:
        raise ArgumentError("\n".join(map(str, violations)))


def _rank_violations(operands: Operands) -> Iterator[Violation]:
    for name, view in operands.named.items():
        if view.ndim != 2:
            rule = "it must have 2 dimensions"
            remedy = "Reshape it, or loop over the others"
            yield Violation(f"{name}.shape", view.shape, rule, remedy)


def _check_types(operands: Operands) -> None:
    for name in ("a", "b"):
        held = operands.named[name].element
        if held.name not in _OPERANDS:
            raise ArrayTypeError(
                f"{name} holds {held}; the kernel multiplies {' and '.join(_OPERANDS)}. Convert it "
                f'with astype; of bytes that hold one, pass {name}_dtype="float8_e4m3fn".'
            )
    for name in ("scale_a", "scale_b"):
        held = operands.named[name].element
        if held.name != "float32":
            raise ArrayTypeError(f"{name} holds {held}; scales are float32. Convert it.")


def _shape_violations(operands: Operands) -> Iterator[Violation]:
    (m, k), (depth, n) = operands.a.shape, operands.b.shape
    if depth != k:
        rule = f"a has shape {(m, k)}, so b must have {k} rows"
        yield Violation("b.shape", (depth, n), rule, "For a matrix stored as [N, K] pass b.T")
    blocks = operands.k_blocks
    if operands.scale_a.shape != (m, blocks):
        rule = f"a row of a has a scale for every {SCALE_BLOCK} of its {k} elements"
        yield Violation("scale_a.shape", operands.scale_a.shape, rule, f"Pass shape {(m, blocks)}")
    padded = -(-blocks // SCALES_PER_LOAD) * SCALES_PER_LOAD
    wide = -(-n // SCALE_BLOCK)
    if operands.scale_b.shape not in {(blocks, n), (blocks, wide), (padded, wide)}:
        rule = (
            f"b has a scale for {SCALE_BLOCK} elements of every column, or for every "
            f"{SCALE_BLOCK} x {SCALE_BLOCK} elements"
        )
        remedy = f"Pass shape {(blocks, n)} or {(blocks, wide)}"
        yield Violation("scale_b.shape", operands.scale_b.shape, rule, remedy)


def new_output(operands: Operands, dtype: object) -> Any:
    """An array for the product, uninitialised, whose rows TMA can write."""
    of = element(dtype)
    if of.name not in _OUTPUTS:
        raise ArrayTypeError(f"dtype is {of}; the output can be {', '.join(_OUTPUTS)}. Pass one.")
    return empty_rows(operands.a, operands.shape, of)


def check_output(out: ArrayView, operands: Operands, wanted: Element | None) -> None:
    """Check that the output is one for these operands.

    Raises:
        ArgumentError: It cannot be written, has another shape or device, or overlaps an operand.
        ArrayTypeError: It has another type.
    """
    _arrays.require_writable(out, "out")
    if out.shape != operands.shape or out.device != operands.a.device:
        raise ArgumentError(
            f"out has shape {out.shape} on device {out.device}; the product has shape "
            f"{operands.shape} on device {operands.a.device}. Pass such an array, or none to get "
            "one."
        )
    if out.element.name not in _OUTPUTS or wanted not in {None, out.element}:
        raise ArrayTypeError(
            f"out holds {out.element}; it must hold {wanted or ' or '.join(_OUTPUTS)}. "
            "Leave out dtype= or out=."
        )
    for name, view in operands.named.items():
        if _arrays.may_overlap(out, view):
            raise ArgumentError(
                f"out overlaps {name} (at {out.address:#x} and {view.address:#x}); the order of "
                "tiles is not defined. Pass an array of its own."
            )
