"""The checked arguments of attention: operands, output, scale, mask and softcap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._kinds import as_int, check_flags, is_flag, is_integer, is_number_in, shown
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._allocation import Allocator, allocator, empty
from tmaasync.ops._extents import MAX_EXTENT, extent_violations
from tmaasync.ops._layouts import Layout, refuse_overlap

TYPES = ("bfloat16", "float16")
FLOAT8 = "float8_e4m3fn"
_MAX_STRIDE_BYTES = 1 << 40
LEAST_TILE_ROWS = 64
MAX_HEAD_DIM = 256
_HEADS, _HEAD_DIM = -2, -1


_LEAVE_OUT = "Leave it out for the default"
_CORNERS = ("top_left", "bottom_right")
_LOG2_E = math.log2(math.e)

# The minimum of scale and softcap; the maximum is its reciprocal. The kernels multiply by both, by
# their quotient and by log2(e) in float32: none may overflow or become subnormal.
_LEAST = 2.0**-60

_MOST_SOFTCAP = 1e4
"""The kernels' tanh has an absolute error of 1e-7, which the cap multiplies: outputs of normally
distributed values are off by 5e-4 of their norm at 1e4, and by 4e-2 at 1e6."""


class Operands(NamedTuple):
    """Views of q, k and v, whose last two dimensions are heads and head_dim."""

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
        """Check the operands against each other, and return their views.

        ``axes`` is the required shape, such as ``[rows, heads, head_dim]``; ``key_axes`` is the
        shape of k and v, if it differs.
        """
        given = zip("qkv", (q, k, v), strict=True)
        operands = cls(*(_arrays.view(array, dtype=dtype, argument=name) for name, array in given))
        shapes = (axes, key_axes or axes, key_axes or axes)
        ArgumentError.raise_for(
            Violation(f"{name}.shape", view.shape, f"it must be {shape}", "Reshape it")
            for (name, view), shape in zip(operands.named, shapes, strict=True)
            if view.ndim != shape.count(",") + 1
        )
        _check_types(operands, (*TYPES, FLOAT8) if may_be_float8 else TYPES)
        ArgumentError.raise_for(_shape_violations(operands))
        ArgumentError.raise_for(_extent_violations(operands))
        ArgumentError.raise_for(
            one for name, view in operands.named for one in reach_violations(name, view)
        )
        return operands

    @property
    def named(self) -> Sequence[tuple[str, ArrayView]]:
        return tuple(zip("qkv", self, strict=True))

    @property
    def are_float8(self) -> bool:
        return self.q.element.itemsize == 1

    @property
    def output_types(self) -> tuple[str, ...]:
        """The legal element types of an output; the first is the default."""
        return TYPES if self.are_float8 else (self.q.element.name,)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(Layout.of(reachable(view)) for view in self)


def _check_types(operands: Operands, types: Sequence[str]) -> None:
    for name, view in operands.named:
        if view.element.name not in types:
            listed = f"{', '.join(types[:-1])} and {types[-1]}"
            raise ArrayTypeError.broken(
                name,
                view.element,
                f"the kernel multiplies {listed}",
                "Convert it with astype",
                verb="holds",
            )
        if view.element is not operands.q.element:
            raise ArrayTypeError.broken(
                name,
                f"{view.element} and q {operands.q.element}",
                "the tensor cores take one type",
                "Convert one of them",
                verb="holds",
            )
    _arrays.common_device(dict(operands.named))


def _head_dim_remedy(head_dim: int, step: int) -> str:
    if head_dim > MAX_HEAD_DIM:
        return (
            "There is no kernel for larger heads: compute softmax(Q K^T) V with two calls of "
            "ops.matmul for each head"
        )
    if head_dim == 0:
        return "Skip the call"
    padded = max(step, -(-head_dim // step) * step)
    return f"Pad q, k and v with zeros to {padded}, and pass scale={head_dim}**-0.5"


def _shape_violations(operands: Operands) -> Iterator[Violation]:
    q, k, v = operands
    heads, head_dim, kv_heads = q.shape[_HEADS], q.shape[_HEAD_DIM], k.shape[_HEADS]
    step = TMA_ALIGNMENT // q.element.itemsize
    if head_dim % step or not 0 < head_dim <= MAX_HEAD_DIM:
        rule = f"a head has a multiple of {step} columns, up to {MAX_HEAD_DIM}"
        yield Violation("q.shape[-1]", head_dim, rule, _head_dim_remedy(head_dim, step))
    if k.shape[_HEAD_DIM] != head_dim:
        rule = f"q has heads of {head_dim}, and Q K^T is computed over head_dim"
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


def _extent_violations(operands: Operands) -> Iterator[Violation]:
    """Yield the extents that the kernels cannot count.

    Queries and keys are limited together, because masks add the position of one to the other. The
    keys of pages are limited by max_seqlen_k.
    """
    q, k, _ = operands
    if k.ndim > q.ndim:
        return
    rows = q.ndim - 3
    extents = {f"q.shape[{rows}] + k.shape[{rows}]": q.shape[rows] + k.shape[rows]}
    if rows:
        tiles = (max(q.shape[1], k.shape[1]) // LEAST_TILE_ROWS + 1) * q.shape[_HEADS]
        extents["tiles"] = q.shape[0] * tiles
    yield from extent_violations(extents)


def reach_violations(name: str, view: ArrayView) -> Iterator[Violation]:
    """Yield the reasons why TMA cannot access an array directly."""
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
    """Return the view with legal TMA strides for dimensions of one element."""
    row_bytes = view.shape[-1] * view.element.itemsize
    strides = tuple(
        row_bytes if size == 1 else stride
        for size, stride in zip(view.shape[:-1], view.strides_bytes[:-1], strict=True)
    )
    return view._replace(strides_bytes=(*strides, view.strides_bytes[-1]))


class Results:
    """The output, the caller's or a new array, and the log-sum-exp, if requested.

    Attributes:
        like: A view of q; new arrays have its framework and device.
        out: A checked view of the output.
        lse: A view of the log-sum-exp, or None.
        returned: The return value of the call.
    """

    def __init__(self, operands: Operands, out: Any, *, return_lse: bool) -> None:
        check_flags(return_lse=return_lse)
        q = operands.q
        *batch, rows, heads, _ = q.shape
        self.like = q
        self._new = [(q.shape, element(operands.output_types[0]))] if out is None else []
        if return_lse:
            self._new.append(((*batch, heads, rows), element(np.float32)))
        new = [empty(q, *each) for each in self._new]
        arrays = new if out is None else [out, *new]
        self.returned = tuple(arrays) if return_lse else arrays[0]
        self.out = _arrays.view(arrays[0], argument="out")
        self.lse = _arrays.view(arrays[1]) if return_lse else None
        _check_output(self.out, operands)

    @property
    def layout(self) -> Layout:
        return Layout.of(reachable(self.out))

    def allocators(self) -> Iterator[Allocator]:
        """Yield allocators of the arrays that the caller does not pass."""
        for shape, element_type in self._new:
            yield allocator(self.like, shape, element_type)


def _check_output(out: ArrayView, operands: Operands) -> None:
    _arrays.require_writable(out, "out")
    if out.shape != operands.q.shape or out.device != operands.q.device:
        raise ArgumentError.broken(
            "out",
            f"{out.shape} {_arrays.where(out.device)}",
            f"the output has shape {operands.q.shape} {_arrays.where(operands.q.device)}",
            "Pass an array of that shape, or leave out= out",
            verb="has shape",
        )
    types = operands.output_types
    if out.element.name not in types:
        why = "" if operands.are_float8 else ", as q does"
        raise ArrayTypeError.broken(
            "out",
            out.element,
            f"it must hold {' or '.join(types)}{why}",
            "Pass another array",
            verb="holds",
        )
    ArgumentError.raise_for(reach_violations("out", out))
    refuse_overlap("out", out, dict(operands.named))


# --- scale, mask, softcap -----------------------------------------------------------------------


class Options(NamedTuple):
    """The arguments of a call that are not arrays."""

    causal: bool | str
    scale: float | None
    window: tuple[int | None, int | None] | None
    softcap: float | None
    return_lse: bool
    batch_invariant: bool = False


class Scores(NamedTuple):
    """Scale, mask and softcap. A query attends to ``left`` keys before and ``right`` after its own.

    With top-left alignment the own key of query i is key i; else the last query is aligned with the
    last key. None means no limit.
    """

    scale: float
    left: int | None
    right: int | None
    is_top_left: bool
    softcap: float | None

    @classmethod
    def of(
        cls,
        head_dim: int,
        causal: bool | str,
        scale: float | None,
        window: tuple[int | None, int | None] | None,
        softcap: float | None,
    ) -> Scores:
        found = [
            *_causal_violations(causal),
            *positive_violations("scale", scale, _LEAVE_OUT),
            *window_violations(window),
            *positive_violations("softcap", softcap, _LEAVE_OUT, most=_MOST_SOFTCAP),
        ]
        ArgumentError.raise_for(found)
        left, right = (side_limit(as_int(side)) for side in window or (None, None))
        if causal:
            right = 0 if right is None else min(right, 0)
        return cls(
            scale=head_dim**-0.5 if scale is None else float(scale),
            left=left,
            right=right,
            is_top_left=causal == "top_left",
            softcap=None if softcap is None else float(softcap),
        )

    @property
    def factors(self) -> tuple[float, float]:
        """The factor of a score in softcap's tanh, and the factor in the exponent of 2."""
        if self.softcap is None:
            return 1.0, self.scale * _LOG2_E
        return self.scale / self.softcap, self.softcap * _LOG2_E


def side_limit(side: int | None) -> int | None:
    """Return the keys on a side of a window; None for no limit."""
    return None if side is None or side < 0 or side >= MAX_EXTENT else side


def _causal_violations(causal: object) -> Iterator[Violation]:
    is_corner = isinstance(causal, str) and causal in _CORNERS
    if not is_flag(causal) and not is_corner:
        rule = f"it is True, False, {' or '.join(map(repr, _CORNERS))}"
        yield Violation("causal", shown(causal), rule, "True aligns the last positions")


def positive_violations(
    name: str, value: object, remedy: str, *, most: float = 1 / _LEAST
) -> Iterator[Violation]:
    """Yield a violation if a value is neither None nor a positive factor in the kernels' range."""
    if value is not None and not is_number_in(value, _LEAST, most):
        rule = f"it must be a number above 0, from {_LEAST:.1e} to {most:.1e}"
        yield Violation(name, shown(value), rule, remedy)


def window_violations(window: object) -> Iterator[Violation]:
    if window is None:
        return
    is_pair = isinstance(window, (tuple, list)) and len(window) == 2
    sides = window if is_pair else ()
    if not is_pair or any(not _is_side(side) for side in sides):  # type: ignore[attr-defined]
        rule = "it must be (left, right): how many keys on either side a position sees"
        remedy = "Pass ints, and None for a side without a limit"
        yield Violation("window", shown(window), rule, remedy)


def _is_side(side: object) -> bool:
    return side is None or (is_integer(side) and side >= -1)
