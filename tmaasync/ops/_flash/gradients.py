"""The checked arrays of the attention backward: inputs of the forward, and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._allocation import Allocator, allocator, empty
from tmaasync.ops._flash.backward import MAX_HEAD_DIM, Maps
from tmaasync.ops._flash.operands import Operands, reach_violations, reachable
from tmaasync.ops._layouts import Layout, refuse_overlap

INPUTS = ("dout", "q", "k", "v", "out", "lse")
"""The arrays that a call reads, in its order."""

GRADIENTS = ("dq", "dk", "dv")
"""The arrays that it writes."""

_FLOAT32 = element(np.float32)
_OF = {"dout": "q", "out": "q", "dq": "q", "dk": "k", "dv": "v"}
"""Which operand each array is like."""


class Gradients(NamedTuple):
    """Views of all arrays of a call, by name.

    Attributes:
        views: The views of `INPUTS` and `GRADIENTS`.
        given: The gradients for which the caller passed an array.
        returned: dq, dk and dv.
    """

    views: Mapping[str, ArrayView]
    given: tuple[str, ...]
    returned: tuple[Any, Any, Any]

    @classmethod
    def of(cls, inputs: Sequence[Any], outputs: Sequence[Any], axes: str) -> Gradients:
        """Check the arrays against each other, and allocate the gradients that are None."""
        named = dict(zip(INPUTS, inputs, strict=True))
        operands = Operands.of(named["q"], named["k"], named["v"], axes)
        views = dict(operands.named)
        ArgumentError.raise_for(_head_dim_violations(operands.q.shape[-1]))
        for name in ("dout", "out", "lse"):
            views[name] = _arrays.view(named[name], argument=name)
        given = {
            name: array for name, array in zip(GRADIENTS, outputs, strict=True) if array is not None
        }
        for name, array in given.items():
            views[name] = _arrays.view(array, argument=name)
            _arrays.require_writable(views[name], name)
        _check_types(views)
        _arrays.common_device(views)
        ArgumentError.raise_for(_violations(views))
        made = {
            name: empty(operands.q, views[_OF[name]].shape, views[_OF[name]].element)
            for name in GRADIENTS
            if name not in given
        }
        views |= {name: _arrays.view(array) for name, array in made.items()}
        _refuse_overlaps(views, tuple(given))
        returned = {**given, **made}
        return cls(views, tuple(given), tuple(returned[name] for name in GRADIENTS))

    @property
    def operands(self) -> Operands:
        return Operands(*(self.views[name] for name in "qkv"))

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(Layout.of(reachable(self.views[name])) for name in Maps._fields)

    @property
    def new_names(self) -> tuple[str, ...]:
        """The names of the gradients for which the caller passed no array."""
        return tuple(name for name in GRADIENTS if name not in self.given)

    def allocators(self) -> Iterator[Allocator]:
        """Yield the allocators of the gradients in `new_names`."""
        for name in self.new_names:
            like = self.views[_OF[name]]
            yield allocator(self.views["q"], like.shape, like.element)


def _head_dim_violations(head_dim: int) -> Iterator[Violation]:
    if head_dim > MAX_HEAD_DIM:
        rule = f"the backward has kernels for heads of up to {MAX_HEAD_DIM} columns"
        remedy = "Use the backward of your framework for larger heads"
        yield Violation("q.shape[-1]", head_dim, rule, remedy)


def _check_types(views: Mapping[str, ArrayView]) -> None:
    wanted = views["q"].element
    for name, view in views.items():
        if name == "lse":
            if view.element is not _FLOAT32:
                raise ArrayTypeError.broken(
                    "lse",
                    view.element,
                    "ops.attention returns it as float32",
                    "Pass that array",
                    verb="holds",
                )
        elif view.element is not wanted:
            raise ArrayTypeError.broken(
                name,
                f"{view.element} and q {wanted}",
                "the tensor cores take one type",
                "Convert one of them",
                verb="holds",
            )


def _violations(views: Mapping[str, ArrayView]) -> Iterator[Violation]:
    for name, like in _OF.items():
        if name not in views:
            continue
        view, wanted = views[name], views[like].shape
        if view.shape != wanted:
            rule = f"{like} has shape {wanted}"
            yield Violation(f"{name}.shape", view.shape, rule, f"Pass an array like {like}")
        else:
            yield from reach_violations(name, view)
    *batch, rows, heads, _ = views["q"].shape
    lse, wanted = views["lse"], (*batch, heads, rows)
    if lse.shape != wanted:
        rule = f"ops.attention returns it for this q in shape {wanted}"
        yield Violation("lse.shape", lse.shape, rule, "Pass what it returned with return_lse=True")
    elif not _arrays.is_contiguous(lse):
        rule = "it must be contiguous, as ops.attention returns it"
        yield Violation("lse's strides", lse.strides_bytes, rule, "Copy the array")


def _refuse_overlaps(views: Mapping[str, ArrayView], given: tuple[str, ...]) -> None:
    inputs = {name: views[name] for name in INPUTS}
    for name in given:
        refuse_overlap(name, views[name], inputs, may_share_rows=True)
    for first, second in itertools.combinations(given, 2):
        other = {second: views[second]}
        refuse_overlap(first, views[first], other, may_share_rows=True)
