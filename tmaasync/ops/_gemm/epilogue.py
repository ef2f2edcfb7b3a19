"""Epilogues: operations on accumulators before they are rounded (gemm/epilogue_ops.cuh)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._kinds import is_number, is_number_in, is_one_of, shown
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.ops._gemm.coefficients import coefficients
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._layouts import Layout


class Activation(IntEnum):
    """Activations of activation.cuh, with the kernels' numbers."""

    NONE = 0
    RELU = 1
    GELU = 2
    GELU_TANH = 3
    SILU = 4


class BiasSide(IntEnum):
    """The side of a bias: none, over the columns, or over the rows."""

    NONE = 0
    COLUMNS = 1
    ROWS = 2


_BY_NAME = {one.name.lower(): one for one in Activation if one is not Activation.NONE}


def activation_of(name: str | None) -> Activation:
    if name is None:
        return Activation.NONE
    if is_one_of(name, _BY_NAME):
        return _BY_NAME[name]
    raise ArgumentError.broken(
        "activation",
        shown(name),
        f"the kernel has {', '.join(_BY_NAME)}",
        "Pass one of them, or None",
    )


# --- compile-time parameters ------------------------------------------------------------------

_DIVIDING = (Activation.SILU, Activation.GELU_TANH)  # a division takes more registers
_TALL_ROWS = 128
_NARROW_BYTES = 64  # row bytes of one store


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The compile-time epilogue of a kernel; conv2d.cu has no factors and no addend."""

    bias: BiasSide = BiasSide.NONE
    activation: Activation = Activation.NONE
    is_scaled: bool = False
    has_addend: bool = False

    @property
    def constants(self) -> dict[str, int]:
        """The constants of conv2d.cu."""
        return {"BIAS": int(self.bias), "ACTIVATION": int(self.activation)}

    @property
    def gemm_constants(self) -> dict[str, int]:
        """The constants of gemm_epilogue.cu."""
        return {
            **self.constants,
            "IS_SCALED": self.is_scaled,
            "HAS_ADDEND": self.has_addend,
        }

    def fits(self, config: TileConfig, output_bytes: int) -> bool:
        """Return whether the epilogue fits in registers and stages next to the accumulators.

        Allowed widths compile without spills for all options, and are not known to be slow. With
        split-K a CTA holds few accumulators at this point, but its stages hold partial accumulators
        of other CTAs. The combine kernel has no epilogue.
        """
        if config.over_grid:
            return False
        if config.split_k > 1:
            return not self.has_addend
        if config.m_major:
            return not self.has_addend or config.holds_addend(output_bytes)
        numbers = coefficients().epilogue
        if config.block_n > self._widest[config.consumers, config.rows]:
            return False
        is_slow = config.ping_pong and config.block_n < numbers.min_ping_pong_columns
        return not (is_slow or self._spills_in(config))

    def _spills_in(self, config: TileConfig) -> bool:
        """Return whether a tile within the allowed width still spills."""
        numbers = coefficients().epilogue
        is_gelu, divides = self.activation is Activation.GELU, self.activation in _DIVIDING
        is_tall = config.rows == _TALL_ROWS
        if self.has_addend or (divides and self.bias is BiasSide.ROWS):
            if is_tall or config.store_bytes < _NARROW_BYTES:
                return True
            return is_gelu and (config.block_n, config.cluster) in numbers.spilling_gelu_addend
        return divides and (config.rows, config.block_n) in numbers.spilling_dividing

    @property
    def _widest(self) -> Any:
        numbers = coefficients().epilogue
        if self.activation is Activation.GELU_TANH and not self.has_addend:
            return numbers.widest_gelu_tanh
        if self.activation in _DIVIDING:
            return numbers.widest_dividing
        if self.activation is Activation.GELU and self.bias is BiasSide.ROWS:
            return numbers.widest_gelu_row_bias
        return numbers.widest

    @property
    def depth(self) -> int:
        """The cost on a tile in elements of K, if nothing overlaps the epilogue."""
        numbers = coefficients().epilogue
        bias = numbers.bias_depth if self.bias is not BiasSide.NONE else 0
        activation = numbers.activation_depth[self.activation.name.lower()]
        return bias + activation + numbers.addend_depth * self.has_addend


# --- arguments of a call ----------------------------------------------------------------------

_T = TypeVar("_T")
_U = TypeVar("_U")
_MOST = float(np.finfo(np.float32).max)
_ONE_FLOAT = Layout((), (), element("float32"), None)


class EpilogueArguments(NamedTuple, Generic[_T]):
    """The epilogue arguments without alpha and beta, as arrays, views or layouts.

    ``c`` is None if beta is 0, so that it is not read.
    """

    has_alpha: bool = False
    activation: Activation = Activation.NONE
    c: _T | None = None
    bias: _T | None = None
    scale_a: _T | None = None
    scale_b: _T | None = None

    @property
    def named(self) -> dict[str, _T]:
        """The arrays that are present, by argument name."""
        pairs = zip(self._fields[2:], self[2:], strict=True)
        return {name: array for name, array in pairs if array is not None}

    @property
    def arrays(self) -> list[_T]:
        return [array for array in self[2:] if array is not None]

    @property
    def form(self) -> tuple[object, ...]:
        """The key of a launch besides the layouts of its arrays."""
        has_alpha, activation, c, bias, scale_a, scale_b = self
        return (
            *(has_alpha, activation),
            *(c is not None, bias is not None, scale_a is not None, scale_b is not None),
        )

    def each(self, change: Callable[[str, _T], _U]) -> EpilogueArguments[_U]:
        """Return a copy with ``change(name, array)`` for every array."""
        changed = {name: change(name, array) for name, array in self.named.items()}
        return EpilogueArguments(self.has_alpha, self.activation, **changed)

    def views(self) -> EpilogueArguments[ArrayView]:
        found = self.each(lambda name, array: _arrays.view(array, argument=name))
        for name, view in (("scale_a", found.scale_a), ("scale_b", found.scale_b)):
            if view is not None:
                _check_scale(name, view)
        return found

    def compiled_for(self, bias_side: BiasSide) -> Epilogue | None:
        """Return the epilogue, with a bias on this side; None if there is nothing to do."""
        if self.form == NO_EPILOGUE.form:
            return None
        bias = BiasSide.NONE if self.bias is None else bias_side
        is_scaled = self.has_alpha or self.scale_a is not None or self.scale_b is not None
        return Epilogue(bias, self.activation, is_scaled, self.c is not None)

    def pointers(
        self, out: int, addresses: Iterable[int], alpha: float, beta: float
    ) -> EpiloguePointers:
        """Return the parameters of gemm_epilogue.cu from the addresses of the output and `arrays`.

        Without an addend its parameter is the output, which is not loaded.
        """
        at = dict(zip(self.named, addresses, strict=True))
        return EpiloguePointers(
            addend=at.get("c") or out,
            bias=at.get("bias", 0),
            scale_a=at.get("scale_a", 0),
            scale_b=at.get("scale_b", 0),
            alpha_bits=float_bits(alpha),
            beta_bits=float_bits(beta),
        )


def layouts_of(views: EpilogueArguments[ArrayView]) -> EpilogueArguments[Layout]:
    def layout(name: str, view: ArrayView) -> Layout:
        return _ONE_FLOAT if name.startswith("scale") else Layout.of(view)

    return views.each(layout)


NO_EPILOGUE: EpilogueArguments[Any] = EpilogueArguments()


class EpiloguePointers(NamedTuple):
    """The parameters of gemm_epilogue.cu that differ by call, after a, b and c."""

    addend: int
    bias: int
    scale_a: int
    scale_b: int
    alpha_bits: int
    beta_bits: int


def epilogue_numbers(
    alpha: float, beta: float, c: Any, scale_a: Any, scale_b: Any
) -> tuple[tuple[float, float], Any, Any, Any]:
    """Return (alpha, beta), c, scale_a and scale_b; scales that are numbers move into alpha."""
    alpha, beta = _finite("alpha", alpha), _finite("beta", beta)
    if c is None and beta not in (0, 1):  # 0 means no addend, and 1 is the default
        raise ArgumentError.broken(
            "beta",
            f"{shown(beta)}, and there is no c",
            "it is the factor of c",
            "Pass c too, or leave beta out",
        )
    scales: list[Any] = []
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if is_number(scale) or isinstance(scale, bool | np.generic):
            alpha *= _finite(name, scale)
            scale = None
        scales.append(scale)
    alpha = _finite("alpha times the scales", alpha)
    return (alpha, 0.0 if c is None else beta), c if beta != 0 else None, *scales


def _finite(name: str, value: Any) -> float:
    if type(value) is float and -_MOST <= value <= _MOST:  # fast path
        return value
    if is_number_in(value, -_MOST, _MOST):
        return float(value)
    raise ArgumentError.broken(
        name,
        shown(value),
        "it must be a finite number that float32 holds",
        "Pass 1.0 for no factor",
    )


def _check_scale(name: str, view: ArrayView) -> None:
    if math.prod(view.shape) != 1:
        raise ArgumentError.broken(
            name,
            view.shape,
            "one number scales all of an operand",
            "Pass a number, or an array of one float32",
            verb="has shape",
        )
    if view.element.name != "float32":
        raise ArrayTypeError.broken(
            name, view.element, "it must hold float32", "Convert it", verb="holds"
        )


def float_bits(value: float) -> int:
    """Return the bits of a float32, as a launch takes a number."""
    return int.from_bytes(struct.pack("<f", value), "little")
