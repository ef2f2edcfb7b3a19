"""The order of calls in compiled code, for operators that all ranks of a group call alike."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

_ORDERED: list[Any] = []


def keep_order(operator: Any) -> None:
    """Have compiled code call operators like this one in the order of the program.

    AOTAutograd may move a call from the backward to the forward, and Inductor sorts calls by the
    bytes that they hold: both may do so on one rank of a group alone. Where torch lacks these
    entry points they may.
    """
    _ORDERED.append(operator)
    try:
        from torch._higher_order_ops import effects  # noqa: PLC0415 - private

        effects._register_effectful_op(operator, effects._EffectType.ORDERED)
    except (AttributeError, ImportError, TypeError):
        pass


def lowered_in_order(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fake kernel of an operator whose order Inductor has to keep too.

    A compiler calls it before it lowers a graph. The import of Inductor takes seconds, which
    operators without a group do not pay.
    """

    @functools.wraps(fake)
    def in_order(*given: Any, **options: Any) -> Any:
        if "torch._inductor" in sys.modules:
            _lower_in_order()
        return fake(*given, **options)

    return in_order


@functools.cache
def _lower_in_order() -> None:
    """Replace Inductor's lowering of ordered effects, which does not order them (torch 2.13)."""
    try:
        from torch._inductor import ir, lowering  # noqa: PLC0415 - private
        from torch._inductor.virtualized import V  # noqa: PLC0415
    except ImportError:
        return
    last: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def lower_after_the_last(fallback: Callable[..., Any], *given: Any, **options: Any) -> Any:
        graph = V.graph
        count = len(graph.operations)
        result = fallback(*given, **options)
        made = graph.operations[count:]  # also what the operands are computed by
        kernel = next(one for one in made if isinstance(one, ir.FallbackKernel))
        if graph in last:
            graph.additional_buffer_deps[kernel.get_operation_name()].add(last[graph])
        last[graph] = kernel.get_name()
        return result

    for operator in _ORDERED:
        fallback = lowering.fallback_handler(operator, add_to_fallback_set=False)
        lower = functools.partial(lower_after_the_last, fallback)
        lowering.register_lowering(operator, type_promotion_kind=None)(lower)
