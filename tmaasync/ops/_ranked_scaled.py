"""What the block-scaled FP8 matmuls of several GPUs share: checks, and how ranks read operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._allocation import output_element
from tmaasync.ops._layouts import Layout, Operand
from tmaasync.ops._ranked_matmul import unfit_matrices
from tmaasync.ops._ranks import Ranks, views_of
from tmaasync.ops._scaled_matmul import (
    OPERANDS,
    OUTPUTS,
    Operands,
    first_rows,
    has_column_scales,
    scale_violations,
    scaled_operands,
)

_NAMES = ("a", "b", "scale_a", "scale_b")
_SCALES = "float32"
_Views = Sequence[ArrayView]


class Types(NamedTuple):
    """The types of a call; None where it names none.

    Attributes:
        out: Of the outputs.
        a: To read A as.
        b: To read B as.
    """

    out: Element | None
    a: Element | None
    b: Element | None

    @classmethod
    def of(cls, dtype: object, a_dtype: object, b_dtype: object) -> Types:
        named = {"a_dtype": a_dtype, "b_dtype": b_dtype}
        out = None if dtype is None else output_element(dtype, OUTPUTS)
        read = (
            None if held is None else element(held, argument=name) for name, held in named.items()
        )
        return cls(out, *read)

    @property
    def new_output(self) -> str:
        """The type of a new output."""
        return "bfloat16" if self.out is None else self.out.name


def scaled_views(
    lists: Sequence[Any],
    types: Types,
    streams: Any,
    unequal: Callable[[_Views, _Views], Iterable[Violation]],
) -> tuple[Ranks, list[list[ArrayView]]]:
    """Return the ranks, and checked views of a, b, scale_a and scale_b of all ranks.

    ``unequal`` yields the rules that a and b break next to each other.
    """
    held = types.a, types.b, None, None
    left = views_of("a", lists[0], held=types.a)
    others = zip(_NAMES[1:], lists[1:], held[1:], strict=True)
    views = [left, *(views_of(name, one, len(left), read) for name, one, read in others)]
    ranks = Ranks.of("a", left, streams)
    ArgumentError.raise_for(_unfit(ranks, views, unequal))
    k_blocks = [Operands(*each).k_blocks for each in zip(*views, strict=True)]
    views[3] = [first_rows(one, rows) for one, rows in zip(views[3], k_blocks, strict=True)]
    return ranks, views


def _unfit(
    ranks: Ranks,
    views: Sequence[_Views],
    unequal: Callable[[_Views, _Views], Iterable[Violation]],
) -> Iterator[Violation]:
    named = dict(zip(_NAMES, views, strict=True))
    yield from unfit_matrices(ranks, named, lambda name, view: _unlike(name, view, named[name][0]))
    if any(view.ndim != 2 for each in views for view in each):
        return
    yield from unequal(views[0], views[1])
    for rank, each in enumerate(zip(*views, strict=True)):
        for one in scale_violations(Operands(*each)):
            yield replace(one, argument=one.argument.replace(".", f"[{rank}]."))


def _unlike(name: str, view: ArrayView, first: ArrayView) -> tuple[str, str] | None:
    """Return the rule and the remedy for an argument of a wrong type; ``first``: rank 0's."""
    if name.startswith("scale"):
        if view.element.name == _SCALES:
            return None
        return "scales are float32", "Convert it with astype"
    if view.element.name in OPERANDS:
        if view.element is first.element:
            return None
        return f"{name}[0] holds {first.element}, and so do all", "Convert it with astype"
    remedy = f'Convert it with astype; of bytes pass {name}_dtype="float8_e4m3fn"'
    return f"the kernel multiplies {' and '.join(OPERANDS)}", remedy


def unlike_outputs(targets: _Views, types: Types) -> Iterator[Violation]:
    """Yield the outputs that do not hold the type that the call names."""
    for rank, view in enumerate(targets):
        if types.out not in {None, view.element}:
            rule = f"dtype is {types.out}"
            yield Violation(f"out[{rank}]", f"an array of {view.element}", rule, "Leave out dtype=")


def read_scaled(a: Layout, b: Layout, scale_a: Layout, scale_b: Layout) -> tuple[Operand, ...]:
    """Return how the kernel of a rank reads its operands."""
    columns = has_column_scales(b, scale_b)
    return scaled_operands(a, b, scale_a, scale_b, column_scales=columns)


def column_scales_of(operands: Sequence[Operand]) -> bool:
    """Return whether B has one scale per column, not per 128 columns."""
    _, b, _, scale_b = operands
    # The kernel reads B as [N, K].
    return not scale_b.transposed and has_column_scales(b.rows.transposed, scale_b.rows)
