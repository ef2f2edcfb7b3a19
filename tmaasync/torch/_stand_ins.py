"""Small arrays without memory, so that fake kernels check element types by the real kernels' code.

The shapes of fake tensors may be symbols, which torch would make constants if they were compared.
"""

from __future__ import annotations

from typing import Any

from tmaasync._arrays import ArrayView
from tmaasync._elements import element

__all__ = ["SIDE", "stand_in"]

SIDE = 16
_ADDRESS = 1 << 20


def stand_in(name: str, tensor: Any, rank: int = 2, *, dtype: Any = None) -> ArrayView:
    """Return a contiguous array with SIDE elements a side, of a tensor's type or another one.

    Raises:
        ArrayTypeError: TMA cannot move the elements; the message has the argument's name.
    """
    kind = element(dtype or tensor.dtype, argument=f"{name}.dtype")
    shape = (SIDE,) * rank
    strides = tuple(kind.itemsize * SIDE**power for power in reversed(range(rank)))
    return ArrayView(_ADDRESS, shape, strides, kind, None, False, "torch", None)
