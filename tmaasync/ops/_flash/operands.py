"""The operands and the output of attention, checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._layouts import Layout, refuse_overlap

__all__ = ["Operands", "check_output", "reachable"]

_TYPES = ("bfloat16", "float16")
_FLOAT8 = "float8_e4m3fn"
_MAX_STRIDE_BYTES = 1 << 40
_MAX_HEAD_DIM = 256
_HEADS, _HEAD_DIM = -2, -1


class Operands(NamedTuple):
    """Views of the operands, whose last two dimensions are heads and head_dim."""

    q: ArrayView
    k: ArrayView
    v: ArrayView

    @classmethod
    def of(
        cls,
        q: Any,
        k: Any,
        v: Any,
        axes: str,
        key_axes: str | None = None,
        *,
        may_be_float8: bool = False,
        dtype: object = None,
    ) -> Operands:
        """Check that the operands fit each other, and return their views.

        Args:
            q: The queries.
            k: The keys.
            v: The values.
            axes: The shape, such as ``[rows, heads, head_dim]``.
            key_axes: The shape of k and v, if it is another.
            may_be_float8: Whether they may be float8_e4m3fn.
            dtype: Their element type, where the arrays cannot say it.

        Raises:
            ArgumentError: Shapes do not fit; every broken rule.
            ArrayTypeError: A type that the kernel does not have, or two types.
        """
        given = zip("qkv", (q, k, v), strict=True)
        operands = cls(*(_arrays.view(array, dtype=dtype, argument=name) for name, array in given))
        shapes = (axes, key_axes or axes, key_axes or axes)
        ArgumentError.raise_for(
            Violation(f"{name}.shape", view.shape, f"it must be {shape}", "Reshape it")
            for (name, view), shape in zip(operands.named, shapes, strict=True)
            if view.ndim != shape.count(",") + 1
        )
        _check_types(operands, (*_TYPES, _FLOAT8) if may_be_float8 else _TYPES)
        ArgumentError.raise_for(_shape_violations(operands))
        ArgumentError.raise_for(
            one for name, view in operands.named for one in reach_violations(name, view)
        )
        return operands

    @property
    def named(self) -> Sequence[tuple[str, ArrayView]]:
        """The views with the names of their arguments."""
        return tuple(zip("qkv", self, strict=True))

    @property
    def are_float8(self) -> bool:
        return self.q.element.itemsize == 1

    @property
    def output_types(self) -> tuple[str, ...]:
        """Element types that an output may have; the first is the default."""
        return _TYPES if self.are_float8 else (self.q.element.name,)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Their layouts as TMA reaches them."""
        return tuple(Layout.of(reachable(view)) for view in self)


def _check_types(operands: Operands, types: Sequence[str]) -> None:
    for name, view in operands.named:
        if view.element.name not in types:
            listed = f"{', '.join(types[:-1])} and {types[-1]}"
            raise ArrayTypeError(
                f"{name} holds {view.element}; the kernel multiplies {listed}. "
                "Convert it with astype."
            )
        if view.element is not operands.q.element:
            raise ArrayTypeError(
                f"{name} holds {view.element} and q {operands.q.element}; the tensor cores take "
                "one type. Convert one of them."
            )
    _arrays.common_device(dict(operands.named))


def _shape_violations(operands: Operands) -> Iterator[Violation]:
    q, k, v = operands
    heads, head_dim, kv_heads = q.shape[_HEADS], q.shape[_HEAD_DIM], k.shape[_HEADS]
    step = TMA_ALIGNMENT // q.element.itemsize
    if head_dim % step or not 0 < head_dim <= _MAX_HEAD_DIM:
        rule = f"a head has a multiple of {step} columns, up to {_MAX_HEAD_DIM}"
        padded = min(max(step, -(-head_dim // step) * step), _MAX_HEAD_DIM)
        yield Violation("q.shape[-1]", head_dim, rule, f"Pad q, k and v with zeros to {padded}")
    if k.shape[_HEAD_DIM] != head_dim:
        rule = f"q has heads of {head_dim}, and scores are their products"
        yield Violation("k.shape[-1]", k.shape[_HEAD_DIM], rule, "Pass keys of that head_dim")
    if v.shape != k.shape:
        rule = f"k has shape {k.shape}, and each key has a value of as many columns"
        yield Violation("v.shape", v.shape, rule, "Pass values of the shape of k")
    if q.ndim == 4 and k.shape[0] != q.shape[0]:
        rule = f"q has {q.shape[0]} entries in its batch"
        yield Violation("k.shape[0]", k.shape[0], rule, "Pass keys for every entry")
    if heads == 0 or kv_heads == 0 or heads % kv_heads:
        rule = f"k has {kv_heads} heads, each of which serves as many of q"
        yield Violation("q.shape[-2]", heads, rule, "Pass a multiple of the heads of k")
    if 0 in q.shape[:_HEADS] and q.ndim == 4:
        yield Violation("q.shape", q.shape, "there are no queries", "Skip the call")


def reach_violations(name: str, view: ArrayView) -> Iterator[Violation]:
    """Yield why TMA cannot reach an array as it is."""
    if view.is_empty:
        return
    view = reachable(view)
    if view.strides_bytes[-1] != view.element.itemsize:
        rule = "the columns of a head must be contiguous"
        yield Violation(f"{name}'s last stride", view.strides_bytes[-1], rule, "Copy the array")
    for dim, stride in enumerate(view.strides_bytes[:-1]):
        if not 0 < stride < _MAX_STRIDE_BYTES or stride % TMA_ALIGNMENT:
            rule = f"TMA takes strides of {TMA_ALIGNMENT}, 32, ... bytes below 2^40"
            yield Violation(f"{name}'s stride {dim}", f"{stride} bytes", rule, "Copy the array")
    if view.address % TMA_ALIGNMENT:
        rule = f"TMA reads from multiples of {TMA_ALIGNMENT} bytes"
        yield Violation(f"{name}'s address", hex(view.address), rule, "Copy the array")


def reachable(view: ArrayView) -> ArrayView:
    """Return the view with a stride that TMA takes where a dimension has one element."""
    row_bytes = view.shape[-1] * view.element.itemsize
    strides = tuple(
        row_bytes if size == 1 else stride
        for size, stride in zip(view.shape[:-1], view.strides_bytes[:-1], strict=True)
    )
    return view._replace(strides_bytes=(*strides, view.strides_bytes[-1]))


def check_output(name: str, out: ArrayView, operands: Operands) -> None:
    """Check that an output is one for these operands.

    Raises:
        ArgumentError: It cannot be written or reached, has another shape or device, or overlaps an
            operand.
        ArrayTypeError: It has another type.
    """
    _arrays.require_writable(out, name)
    if out.shape != operands.q.shape or out.device != operands.q.device:
        raise ArgumentError(
            f"{name} has shape {out.shape} on device {out.device}; the output has shape "
            f"{operands.q.shape} on device {operands.q.device}. Pass such an array, or none to get "
            "one."
        )
    types = operands.output_types
    if out.element.name not in types:
        why = "" if operands.are_float8 else ", as q does"
        raise ArrayTypeError(
            f"{name} holds {out.element}; it must hold {' or '.join(types)}{why}. Pass such an "
            "array."
        )
    ArgumentError.raise_for(reach_violations(name, out))
    refuse_overlap(name, out, dict(operands.named))
