"""FP8 attention: scales of the operands, and transposed V (for FP8 wgmma needs it K-major)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._allocation import Allocator, allocator
from tmaasync.ops._flash.operands import Operands, Scores, positive_violations
from tmaasync.ops._layouts import Layout, padded_row_bytes

_FLOAT32, _BYTE = element(np.float32), element(np.uint8)
_OPERANDS = 3
_OF_ALL = ((), (1,))  # shapes of a scale that applies to the whole operand
_LARGEST_SCORE = 2.0**26 * math.log(2)
_NAMES = tuple(f"scales[{index}]" for index in range(_OPERANDS))


class Scale(NamedTuple):
    """The scale of an operand: a number, times the entries of an optional array.

    ``steps`` holds the array's strides in elements along the batch and KV heads; None without an
    array.
    """

    number: float = 1.0
    steps: tuple[int, int] | None = None

    @property
    def fields(self) -> tuple[int, int, float]:
        """Return the fields of `SCALE`."""
        return (*(self.steps or (0, 0)), self.number)


Scales = tuple[Scale, ...]
"""The scales of q, k and v."""

UNSCALED: Scales = (Scale(),) * _OPERANDS


def given_scales(scales: Any) -> tuple[tuple[float | None, ...], tuple[Any, ...]]:
    """Return a number for each operand (1 by default, None for an array), and the arrays."""
    if scales is None:
        return (1.0,) * _OPERANDS, ()
    if not isinstance(scales, tuple | list) or len(scales) != _OPERANDS:
        raise ArgumentError.broken(
            "scales",
            f"{scales!r}",
            "it must hold one each for q, k and v",
            "Pass three: numbers, arrays of float32, or None for 1",
        )
    numbers: list[Any] = []
    arrays = []
    for scale in scales:
        if scale is None:
            numbers.append(1.0)
        elif isinstance(scale, Real) and not isinstance(scale, bool):
            numbers.append(scale)
        else:
            numbers.append(None)
            arrays.append(scale)
    return tuple(numbers), tuple(arrays)


def scales_of(
    numbers: Sequence[float | None], arrays: Sequence[Any], operands: Operands, batch: int
) -> tuple[Scales, tuple[ArrayView, ...]]:
    """Check the result of `given_scales`; return the scales, and views of the arrays.

    ``batch`` is the number of batch entries or sequences.
    """
    if not operands.are_float8:
        raise ArgumentError.broken(
            "scales",
            f"given, and q holds {operands.q.element}",
            "only float8_e4m3fn operands have scales",
            "Leave them out, or multiply scale by the scales of q and k",
            verb="are",
        )
    of_arrays = [name for name, number in zip(_NAMES, numbers, strict=True) if number is None]
    given = dict(zip(of_arrays, arrays, strict=True))
    seen = [_arrays.view(given[name], argument=name) if name in given else None for name in _NAMES]
    named = zip(_NAMES, numbers, strict=True)
    of_numbers = [one for pair in named for one in positive_violations(*pair, "Pass None for 1")]
    ArgumentError.raise_for([*of_numbers, *_array_violations(seen, operands, batch)])
    found = (
        Scale(1.0 if number is None else float(number), None if view is None else _steps(view))
        for number, view in zip(numbers, seen, strict=True)
    )
    return tuple(found), tuple(view for view in seen if view is not None)


def scale_names(scales: Scales) -> tuple[str, ...]:
    """Return the names of the scales that are arrays, as kernel parameters."""
    return tuple(
        f"scale_{side}"
        for side, scale in zip("qkv", scales, strict=True)
        if scale.steps is not None
    )


def check_factor(scores: Scores, scales: Scales) -> None:
    """Refuse numbers of which any score that is 1 or more exceeds what FP8 kernels resolve.

    In the kernels, softmax.cuh; they make the rows of larger scores NaN.
    """
    numbers = [one.number for one in scales[:2] if one.steps is None]
    factor = scores.scale * math.prod(numbers)
    if len(numbers) == 2 and scores.softcap is None and factor > _LARGEST_SCORE:
        rule = f"scaled scores of float8 are resolved up to 2^26 ln 2 = {_LARGEST_SCORE:.3g}"
        argument = "scale * scales[0] * scales[1]"
        remedy = "Pass smaller factors, or multiply bfloat16 arrays by them"
        raise ArgumentError.broken(argument, f"{factor:g}", rule, remedy)


def _steps(view: ArrayView) -> tuple[int, int]:
    """Return the strides in elements; 0 along a dimension that shares one scale."""
    if view.shape in _OF_ALL:
        return 0, 0
    entry, head = (stride // _FLOAT32.itemsize for stride in view.strides_bytes)
    return entry, head


def _array_violations(
    seen: Sequence[ArrayView | None], operands: Operands, batch: int
) -> Iterator[Violation]:
    kv_heads = operands.k.shape[-2]
    shapes = (*_OF_ALL, (batch, kv_heads))
    for name, view in zip(_NAMES, seen, strict=True):
        if view is None:
            continue
        if view.shape not in shapes:
            rule = f"one scale is for all, or {batch} x {kv_heads} for the entries' heads of keys"
            yield Violation(f"{name}.shape", view.shape, rule, "Reshape it")
        if view.element is not _FLOAT32:
            remedy = "Convert it with astype"
            yield Violation(name, f"of {view.element}", "scales are float32", remedy)
        if view.device != operands.q.device:
            rule = f"q lies {_arrays.where(operands.q.device)}"
            yield Violation(name, f"{_arrays.where(view.device)}", rule, "Copy it there")


class Float8Workspace(NamedTuple):
    """The workspace of a call: transposed V, then partial outputs.

    ``shape`` is the shape of transposed V, [batch, kv_heads, head_dim, keys], with keys rounded up
    to a multiple of 16.
    """

    shape: tuple[int, int, int, int]

    @classmethod
    def of(cls, v: Layout) -> Float8Workspace:
        batch, keys, kv_heads, head_dim = v.shape
        return cls((batch, kv_heads, head_dim, padded_row_bytes(keys, v.element)))

    @property
    def partials_at(self) -> int:
        """The offset of the partial outputs in bytes, a multiple of 16."""
        return math.prod(self.shape)

    def allocator(self, like: ArrayView, partial_bytes: int = 0) -> Allocator:
        return allocator(like, (self.partials_at + partial_bytes,), _BYTE)

    def transposed(self, memory: Any, v: ArrayView) -> ArrayView:
        """Return a view of transposed V in memory from `allocator`."""
        _, kv_heads, head_dim, keys = self.shape
        strides = (kv_heads * head_dim * keys, head_dim * keys, keys, 1)
        view = _arrays.view(memory)
        return view._replace(shape=self.shape, strides_bytes=strides, element=v.element)
