"""Attention over operands of 8 bits: their scales, and values that are transposed ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple, cast

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._elements import element
from tmaasync.emulate import EmulatedLaunch
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._results import maker, padded_row_bytes
from tmaasync.ops.attention.arguments import Views, refuse
from tmaasync.ops.attention.kernel import (
    TRANSPOSED_KEYS,
    TRANSPOSING_THREADS,
    Blocking,
    transposing_kernel,
    transposing_tiles,
)
from tmaasync.ops.attention.scores import positive_violations
from tmaasync.ops.attention.split_launch import SplitLaunch

__all__ = ["UNSCALED", "Float8Launch", "Scale", "TransposedValues", "given_scales", "scales_of"]

_FLOAT32, _BYTE = element(np.float32), element(np.uint8)
_FACTOR_BYTES = 8  # of a head of keys
_OPERANDS = 3
_OF_ALL = ((), (1,))  # shapes of a scale that is for all
_NAMES = tuple(f"scales[{place}]" for place in range(_OPERANDS))


class Scale(NamedTuple):
    """How the elements of an operand are scaled, but for where the scales lie."""

    number: float = 1.0
    steps: tuple[int, int] | None = None
    """From one entry's to the next, and from one head's of keys, in elements; None if there is no
    array."""


UNSCALED = (Scale(),) * _OPERANDS


def given_scales(scales: Any) -> tuple[tuple[float | None, ...], tuple[Any, ...]]:
    """The numbers among them, 1 where there is none, None in the place of an array; and the arrays.

    Raises:
        ArgumentError: They are no three.
    """
    if scales is None:
        return (1.0,) * _OPERANDS, ()
    if not isinstance(scales, tuple | list) or len(scales) != _OPERANDS:
        raise ArgumentError(
            f"scales is {scales!r}; it must be those of q, k and v. Pass three: numbers, arrays of "
            "float32, or None for 1."
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
    numbers: Sequence[float | None], arrays: Sequence[Any], views: Views
) -> tuple[tuple[Scale, ...], tuple[ArrayView, ...]]:
    """What `given_scales` found, checked; and the arrays as they lie.

    Raises:
        ArgumentError: Operands are not of 8 bits; a number is not above 0; an array has another
            shape, type or device.
    """
    if not views.are_bytes:
        raise ArgumentError(
            f"scales are given, and q holds {views.q.element}; those of float8_e4m3fn are scaled. "
            "Leave them out, or multiply scale by those of q and k."
        )
    rest = iter(arrays)
    seen = [
        None if number is not None else _arrays.view(next(rest), argument=name)
        for name, number in zip(_NAMES, numbers, strict=True)
    ]
    named = zip(_NAMES, numbers, strict=True)
    of_numbers = [one for pair in named for one in positive_violations(*pair, "Pass None for 1")]
    refuse([*of_numbers, *_array_violations(seen, views)])
    found = (
        Scale(1.0 if number is None else float(number), None if view is None else _steps(view))
        for number, view in zip(numbers, seen, strict=True)
    )
    return tuple(found), tuple(view for view in seen if view is not None)


def _steps(view: ArrayView) -> tuple[int, int]:
    """From one entry's scale to the next, and from one head's; none where one is for all."""
    if view.shape in _OF_ALL:
        return 0, 0
    entry, head = (stride // _FLOAT32.itemsize for stride in view.strides_bytes)
    return entry, head


def _array_violations(seen: Sequence[ArrayView | None], views: Views) -> Iterator[Violation]:
    batch, _, kv_heads, _ = views.k.shape
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
        if view.device != views.q.device:
            rule = f"q lies on device {views.q.device}"
            yield Violation(name, f"on device {view.device}", rule, "Copy it there")


class TransposedValues(NamedTuple):
    """Memory for values transposed, behind them the factors of every head of keys, and parts."""

    shape: tuple[int, int, int, int]
    """[batch, kv_heads, head_dim, keys], the latter up to a multiple of 16."""

    @classmethod
    def of(cls, v: ArrayView) -> TransposedValues:
        """For values [batch, keys, kv_heads, head_dim]."""
        batch, keys, kv_heads, head_dim = v.shape
        return cls((batch, kv_heads, head_dim, padded_row_bytes(keys, v.element)))

    @property
    def factors_at(self) -> int:
        """Where these start, in bytes."""
        return math.prod(self.shape)

    @property
    def parts_at(self) -> int:
        """Where parts start. The kernel has the same rule, `workspace_after`."""
        batch, kv_heads, *_ = self.shape
        count = batch * kv_heads
        return self.factors_at + (count + count % 2) * _FACTOR_BYTES

    def maker(self, like: ArrayView, part_bytes: int = 0) -> Callable[[], Any]:
        """What makes such memory, of the framework of ``like``."""
        return maker(like, (self.parts_at + part_bytes,), _BYTE)

    def over(self, memory: Any, v: ArrayView) -> ArrayView:
        """The values there, as `maker` made it for ``v``."""
        _, kv_heads, head_dim, keys = self.shape
        strides = (kv_heads * head_dim * keys, head_dim * keys, keys, 1)
        where = _arrays.view(memory)
        return where._replace(shape=self.shape, strides_bytes=strides, element=v.element)


class Float8Launch:
    """A launch of attention_values.cu, and one of attention behind it.

    The addresses that it takes are those of q, k, v, the output, lse or 0, memory for
    `TransposedValues`, and the scales of q, k and v that are arrays, else 0. In the order of the
    stream that memory may be given back at once.
    """

    def __init__(
        self,
        attend: PreparedLaunch | EmulatedLaunch | SplitLaunch,
        v: ArrayView,
        values: ArrayView,
        scales: Sequence[Scale],
        blocking: Blocking,
    ) -> None:
        """Compile the first kernel and pack its arguments; nothing is launched."""
        self._attend = attend
        self._values = TransposedValues.of(v)
        tiles = transposing_tiles(v, values, blocking)
        _, keys, kv_heads, _ = v.shape
        packed_scales = b"".join(
            np.array(scale.steps or (0, 0), np.int32).tobytes() + np.float32(scale.number).tobytes()
            for scale in scales
        )
        kernel = transposing_kernel(tuple(tile.cuda_type for tile in tiles), blocking)
        self._transpose = kernel.prepare(
            -(-keys // TRANSPOSED_KEYS) * kv_heads * v.shape[0],
            TRANSPOSING_THREADS,
            (*tiles, 0, 0, 0, 0, packed_scales, np.array([keys, kv_heads], np.int32).tobytes()),
            pdl=True,
        )
        self._transpose.release()

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch both."""
        to_transpose, to_attend = self._of_both(addresses)
        self._transpose.launch_at(to_transpose, stream)
        self._attend.launch_at(to_attend, stream)

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """What does that again and again at a fraction of the cost; on a device."""
        to_transpose, to_attend = self._of_both(addresses)
        transpose = cast("PreparedLaunch", self._transpose).bind(to_transpose, stream)
        attend = cast("PreparedLaunch | SplitLaunch", self._attend).bind(to_attend, stream)

        def both() -> None:
            transpose()
            attend()

        return both

    def _of_both(self, addresses: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Of each one's first parameters."""
        q, k, v, out, lse, memory, *scales = addresses
        factors = memory + self._values.factors_at
        to_attend: Sequence[int] = (q, k, memory, out, lse, factors)
        if isinstance(self._attend, SplitLaunch):
            to_attend = (*to_attend, memory + self._values.parts_at)
        return (v, memory, factors, *scales), to_attend
