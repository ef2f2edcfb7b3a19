"""What a product is given beside its operands: factors, an addend, a bias, an activation."""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.ops._blocking import Blocking
from tmaasync.ops._epilogue import Activation, BiasSide, Epilogue, activation_of
from tmaasync.ops.gemm.matrix import Matrix, Operand

__all__ = ["PLAIN", "ExtraForm", "ExtraViews", "Extras", "ProductEpilogue"]

_NAMES = ("c", "bias", "scale_a", "scale_b")

# Columns of a block with an epilogue, by (consumers, rows of each): with most; where the activation
# divides, which takes more registers; and with GELU and a bias of rows.
_WIDEST = {(2, 64): 256, (1, 64): 224, (3, 64): 160, (2, 128): 192}
_WIDEST_DIVIDING = {(2, 64): 192, (1, 64): 192, (3, 64): 128, (2, 128): 192}
_WIDEST_GELU_OF_ROWS = {(2, 64): 160, (1, 64): 160, (3, 64): 160, (2, 128): 0}
_DIVIDING = (Activation.SILU, Activation.GELU_TANH)
_TALL_ROWS = 128
_NARROW_BYTES = 64  # of a row, in one store
# What spills within these widths: columns of tall blocks where the activation divides, and columns
# and CTAs that share loads of others with GELU and an addend.
_SPILLING_TALL = 128
_SPILLING_ADDENDS = {(224, 1), (224, 2), (256, 2)}

# As how much of K such work on a block counts that nothing overlaps, in products of 4096 and 8192
# cubed on an H200.
_BIAS_DEPTH = _ADDEND_DEPTH = 150
_ACTIVATION_DEPTH = {
    Activation.NONE: 0,
    Activation.RELU: 60,
    Activation.GELU: 300,
    Activation.GELU_TANH: 550,
    Activation.SILU: 550,
}
# Blocks of groups that take turns were slower than the model has it where they are narrower: 128 x
# 64 by 1.25, in products of 2048 cubed on an H200.
_LEAST_COLUMNS_IN_TURNS = 96

_NUMBERS = (numbers.Real, np.generic)
_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ProductEpilogue(Epilogue):
    """What gemm_epilogue.cu is compiled for."""

    is_scaled: bool = False
    has_addend: bool = False

    @property
    def constants(self) -> dict[str, int]:
        """What the kernel is compiled with."""
        return {
            **super().constants,
            "IS_SCALED": self.is_scaled,
            "HAS_ADDEND": self.has_addend,
        }

    def fits(self, blocking: Blocking, output_bytes: int) -> bool:
        """Whether there is room for its work beside the sums, in registers and in the ring.

        The widths are those that compile without spills, whatever else is asked for, and not those
        known to be slow. A split block has few sums by then, but its ring holds what was sent.
        """
        if blocking.split > 1:
            return not self.has_addend
        if blocking.by_columns:
            return not self.has_addend or blocking.holds_addend(output_bytes)
        if blocking.block_n > self._widest[blocking.consumers, blocking.rows]:
            return False
        is_slow = blocking.ping_pong and blocking.block_n < _LEAST_COLUMNS_IN_TURNS
        return not (is_slow or self._spills_in(blocking))

    def _spills_in(self, blocking: Blocking) -> bool:
        """Whether such a block spills though it is not too wide."""
        is_gelu, divides = self.activation is Activation.GELU, self.activation in _DIVIDING
        is_tall = blocking.rows == _TALL_ROWS
        if self.has_addend or (divides and self.bias is BiasSide.ROWS):
            if is_tall or blocking.chunk_bytes < _NARROW_BYTES:
                return True
            return is_gelu and (blocking.block_n, blocking.cluster) in _SPILLING_ADDENDS
        return is_tall and divides and blocking.block_n == _SPILLING_TALL

    @property
    def _widest(self) -> dict[tuple[int, int], int]:
        if self.activation in _DIVIDING:
            return _WIDEST_DIVIDING
        if self.activation is Activation.GELU and self.bias is BiasSide.ROWS:
            return _WIDEST_GELU_OF_ROWS
        return _WIDEST

    @property
    def depth(self) -> int:
        """As how much of K its work on a block counts, where nothing overlaps it."""
        bias = _BIAS_DEPTH if self.bias is not BiasSide.NONE else 0
        return bias + _ACTIVATION_DEPTH[self.activation] + _ADDEND_DEPTH * self.has_addend


class Extras(NamedTuple):
    """The arguments: arrays as they were given, numbers checked and multiplied.

    ``c`` is None where beta is 0, so that nothing is read that does not count.
    """

    alpha: float = 1.0
    beta: float = 0.0
    activation: Activation = Activation.NONE
    c: Any = None
    bias: Any = None
    scale_a: Any = None
    scale_b: Any = None

    @classmethod
    def of(
        cls,
        alpha: float,
        c: Any,
        beta: float,
        bias: Any,
        activation: str | None,
        scale_a: Any,
        scale_b: Any,
    ) -> Extras:
        """Check the numbers, and multiply scales that are numbers into alpha.

        Raises:
            ArgumentError: A number is not finite, or the activation has no such name.
        """
        alpha, beta = _finite("alpha", alpha), _finite("beta", beta)
        scales: list[Any] = []
        for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
            if scale is not None and isinstance(scale, _NUMBERS):
                alpha *= _finite(name, scale)
                scale = None
            scales.append(scale)
        return cls(
            _finite("alpha times the scales", alpha),
            0.0 if c is None else beta,
            activation_of(activation),
            c if beta != 0 else None,
            bias,
            *scales,
        )

    @property
    def arrays(self) -> list[Any]:
        """Those that are given."""
        return [array for array in self[3:] if array is not None]

    @property
    def form(self) -> tuple[object, ...]:
        """What a plan depends on, beside how the arrays lie: is there a factor, which arrays."""
        _, _, activation, c, bias, scale_a, scale_b = self
        return (
            *(self.alpha != 1, activation),
            *(c is not None, bias is not None, scale_a is not None, scale_b is not None),
        )

    @property
    def numbers(self) -> tuple[float, float]:
        """Those that the kernel is given."""
        return self[:2]


PLAIN = Extras()


def _finite(name: str, value: Any) -> float:
    """The number, if fp32 holds it."""
    if type(value) is float and -_MOST <= value <= _MOST:  # quicker
        return value
    if isinstance(value, _NUMBERS):
        number = float(value)
        if abs(number) <= _MOST:
            return number
    raise ArgumentError(
        f"{name} is {value!r}; it must be a finite number that float32 holds. "
        "Pass 1.0 for no factor."
    )


class ExtraViews(NamedTuple):
    """The arrays, looked at and checked against the product."""

    c: ArrayView | None = None
    bias: ArrayView | None = None
    scale_a: ArrayView | None = None
    scale_b: ArrayView | None = None

    @classmethod
    def of(cls, extras: Extras) -> ExtraViews:
        """Look at the arrays."""
        pairs = zip(_NAMES, extras[3:], strict=True)
        views = cls(
            *(
                None if array is None else _arrays.view(array, argument=name)
                for name, array in pairs
            )
        )
        for name, view in zip(_NAMES[2:], views[2:], strict=True):
            if view is not None:
                _check_scale(name, view)
        return views

    @property
    def given(self) -> dict[str, ArrayView]:
        """By the name of their argument."""
        pairs = zip(_NAMES, self, strict=True)
        return {name: view for name, view in pairs if view is not None}


def _check_scale(name: str, view: ArrayView) -> None:
    if math.prod(view.shape) != 1:
        raise ArgumentError(
            f"{name} has shape {view.shape}; one number scales all of an operand. "
            "Pass a number, or an array of one float32."
        )
    if view.element.name != "float32":
        raise ArrayTypeError(f"{name} holds {view.element}; it must hold float32. Convert it.")


class ExtraForm(NamedTuple):
    """What a plan depends on of them."""

    is_scaled: bool
    activation: Activation
    addend: Matrix | None
    bias: Matrix | None
    scale_a: bool
    scale_b: bool

    @classmethod
    def of(cls, extras: Extras, views: ExtraViews) -> ExtraForm | None:
        """That of some; None if there are none."""
        if extras.form == PLAIN.form:
            return None
        scales = (views.scale_a is not None, views.scale_b is not None)
        is_scaled = extras.alpha != 1 or any(scales)
        addend, bias = (None if view is None else Matrix.of(view) for view in views[:2])
        return cls(is_scaled, extras.activation, addend, bias, *scales)

    @property
    def arrays(self) -> list[Matrix]:
        """Those that are given, in the order of `Extras.arrays`."""
        scales = [_ONE_FLOAT] * (self.scale_a + self.scale_b)
        return [matrix for matrix in (self.addend, self.bias) if matrix is not None] + scales

    def adds_in_order_of(self, out: Matrix) -> bool:
        """Whether the addend lies like the output, so that it may be the output."""
        return self.addend is not None and self.addend.strides_bytes == out.strides_bytes

    @property
    def copies_bias(self) -> bool:
        """Whether the kernel cannot read the bias as it lies."""
        return self.bias is not None and not self.bias.is_packed

    def addend_operand(self, flips: bool) -> Operand | None:
        """How the kernel reads the addend: as it stores the output, ``flips``: by columns."""
        if self.addend is None:
            return None
        return Operand.of_rows(self.addend.transposed if flips else self.addend)

    def words(
        self, out: int, addresses: Iterable[int], alpha: float, beta: float
    ) -> tuple[int, ...]:
        """The parameters of gemm_epilogue.cu behind the output; addresses of `Extras.arrays`.

        Without an addend that parameter is the output, which is then not loaded.
        """
        found = iter(addresses)
        given = (self.addend is not None, self.bias is not None, self.scale_a, self.scale_b)
        c, *others = (next(found) if is_given else 0 for is_given in given)
        return c or out, *others, _float_bits(alpha), _float_bits(beta)

    def epilogue(self, bias_side: BiasSide) -> ProductEpilogue:
        """What the kernel is compiled for, if a bias runs there."""
        bias = BiasSide.NONE if self.bias is None else bias_side
        return ProductEpilogue(bias, self.activation, self.is_scaled, self.addend is not None)


_ONE_FLOAT = Matrix((), (), element("float32"), None, starts_on_granule=True)


def _float_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")
