"""What becomes of a product's sums before they are rounded: kernels/gemm/epilogue_ops.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tmaasync.errors import ArgumentError

__all__ = ["Activation", "BiasSide", "Epilogue", "activation_of"]


class Activation(IntEnum):
    """What the kernel calls the functions of activation.cuh."""

    NONE = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4


class BiasSide(IntEnum):
    """Whether the product has a bias, and whether it runs over its columns or its rows."""

    NONE = 0
    COLUMNS = 1
    ROWS = 2


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What the kernels are compiled for."""

    bias: BiasSide = BiasSide.NONE
    activation: Activation = Activation.NONE

    @property
    def constants(self) -> dict[str, int]:
        """What the kernels are compiled with."""
        return {"BIAS": int(self.bias), "ACTIVATION": int(self.activation)}


def activation_of(name: str | None) -> Activation:
    """The function of this name.

    Raises:
        ArgumentError: There is none.
    """
    if name is None:
        return Activation.NONE
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise ArgumentError(
        f"activation is {name!r}; the kernel has {', '.join(_BY_NAME)}. Pass one of them, or None."
    )


_BY_NAME = {one.name.lower(): one for one in Activation if one is not Activation.NONE}
