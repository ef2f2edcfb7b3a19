"""The order of calls in compiled code, for operators that all ranks of a group call alike."""

from __future__ import annotations

import functools
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


@functools.cache
def lower_in_order() -> None:
    """Have Inductor keep the order too, whose own lowering of effects (torch 2.13) does not.

    Called before it lowers the first graph: to import it takes seconds.
    """
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
