"""How Hopper's tensor cores add: integer arithmetic on arrays of bits, of NumPy or of CuPy.

The terms a[k] * b[k] and the accumulator are aligned to the greatest exponent among them, cut at
some bits below it, added exactly and rounded once (MMA-Sim, arXiv 2511.10909).
probe_tensor_core_bits.py compares it with a chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  # of NumPy or CuPy

_NEVER = -(1 << 20)  # exponent of a term that does not count
_LEAST_EXPONENT = -133  # that terms are aligned to


@dataclass(frozen=True)
class Element:
    """A floating-point type, by the bits of its exponent and of its fraction."""

    name: str
    exponent_bits: int
    fraction_bits: int
    bytes: int
    low_bits: int = 0  # of the container, that are not read
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def last_field(self) -> int:
        return (1 << self.exponent_bits) - 1

    @property
    def last_fraction(self) -> int:
        return (1 << self.fraction_bits) - 1


E4M3 = Element("e4m3", 4, 3, 1, has_infinity=False)
E5M2 = Element("e5m2", 5, 2, 1)
F16 = Element("f16", 5, 10, 2)
BF16 = Element("bf16", 8, 7, 2)
TF32 = Element("tf32", 8, 10, 4, low_bits=13)
F32 = Element("f32", 8, 23, 4)

Types = tuple[Element, Element, Element]  # of A, B and the accumulators


@dataclass(frozen=True)
class Numbers:
    """Decoded bits: sign * significand * 2^(exponent - fraction bits), all int64 but the flags."""

    sign: Array
    significand: Array
    exponent: Array
    is_nan: Array
    is_infinite: Array


def decode(xp: Any, bits: Array, element: Element) -> Numbers:
    bits = bits.astype(xp.int64) >> element.low_bits
    fraction = bits & element.last_fraction
    field = bits >> element.fraction_bits & element.last_field
    negative = bits >> (element.fraction_bits + element.exponent_bits) & 1
    is_last = field == element.last_field
    if element.has_infinity:
        is_nan, is_infinite = is_last & (fraction != 0), is_last & (fraction == 0)
    else:
        is_nan = is_last & (fraction == element.last_fraction)
        is_infinite = xp.zeros_like(is_nan)
    return Numbers(
        1 - 2 * negative,
        xp.where(field > 0, fraction | 1 << element.fraction_bits, fraction),
        xp.maximum(field, 1) - element.bias,
        is_nan,
        is_infinite,
    )


def values(xp: Any, bits: Array, element: Element) -> Array:
    """As float64. Infinities and NaNs are large numbers here."""
    number = decode(xp, bits, element)
    signed = (number.sign * number.significand).astype(xp.float64)
    return xp.ldexp(signed, (number.exponent - element.fraction_bits).astype(xp.int32))


@dataclass(frozen=True)
class Model:
    """The parameters of one form.

    `bits` are kept below the greatest exponent. The exponent of a term is the sum of its operands'
    encoded exponents; a term of zero has none.
    """

    bits: int = 25
    kept_fraction: int = 23  # of an f32 result
    in_halves: bool = False  # two sums of half of K from 0, to which the accumulator is added


def model_of(instruction: str, a: Element) -> Model:
    """Return the model of "wgmma" or "mma.sync" with this type of A."""
    if a.bytes > 1:
        return Model()
    # Hopper has no mma.sync of FP8: its code converts to fp16, multiplies twice and adds in fp32.
    return Model(in_halves=True) if instruction == "mma.sync" else Model(13, 13)


def leading_bit(xp: Any, magnitude: Array) -> Array:
    """Of an int64 below 2^53; of 0 a very small number."""
    exponent = (magnitude.astype(xp.float64).view(xp.int64) >> 52) - 1023
    return xp.where(magnitude > 0, exponent, _NEVER)


def _shifted(xp: Any, magnitude: Array, by: Array) -> Array:
    """Shift to the left, or to the right where `by` is negative: cut towards zero."""
    left, right = xp.clip(by, 0, 62), xp.clip(-by, 0, 62)
    return (magnitude << left) >> right


@dataclass
class _Sum:
    """What a group has added up: total * 2^unit, or infinities and NaNs."""

    total: Array
    unit: Array
    is_nan: Array
    positive: Array
    negative: Array


def encode(xp: Any, result: _Sum, out: Element, model: Model) -> Array:
    """Round a sum to the bits of the accumulator's type."""
    fraction_bits = model.kept_fraction if out is F32 else out.fraction_bits
    lowest = 1 - out.bias - fraction_bits
    magnitude = abs(result.total)
    last = xp.maximum(leading_bit(xp, magnitude) + result.unit - fraction_bits, lowest)
    by = result.unit - last
    kept = _shifted(xp, magnitude, by)
    if out is F16:
        rest = magnitude - _shifted(xp, kept, -by)
        half = xp.where(by < 0, _shifted(xp, xp.ones_like(by), -by - 1), _NEVER)
        up = (by < 0) & ((rest > half) | ((rest == half) & (kept & 1 == 1)))
        kept = kept + xp.where(up & (-by < 62), 1, 0)
    bits = kept + (xp.where(kept > 0, last - lowest, 0) << fraction_bits)
    infinity = out.last_field << fraction_bits
    bits = xp.where((bits >= infinity) | result.positive | result.negative, infinity, bits)
    bits = bits << (out.fraction_bits - fraction_bits)
    is_negative = xp.where(
        result.positive | result.negative, result.negative, (result.total < 0) & (bits > 0)
    )
    sign_bit = out.exponent_bits + out.fraction_bits
    bits = bits | (is_negative.astype(xp.int64) << sign_bit)
    return xp.where(result.is_nan, (1 << sign_bit) - 1, bits)


@dataclass(frozen=True)
class _Operands:
    """A [tiles, rows, K] and B [tiles, columns, K] decoded; a term is of one k."""

    a: Numbers
    b: Numbers
    fraction_bits: int

    def pair(self, name: str, k: int) -> tuple[Array, Array]:
        return getattr(self.a, name)[:, :, None, k], getattr(self.b, name)[:, None, :, k]

    def term(self, k: int) -> tuple[Array, Array]:
        """Return the magnitude and the exponent of a[k] * b[k]."""
        a, b = self.pair("significand", k)
        exponents = self.pair("exponent", k)
        return a * b, exponents[0] + exponents[1]

    def signs(self, k: int) -> Array:
        a, b = self.pair("sign", k)
        return a * b


def _counted(xp: Any, magnitude: Array, exponent: Array) -> Array:
    """The exponent of a term in the search for the greatest one."""
    return xp.where(magnitude > 0, exponent, _NEVER)


def _add(xp: Any, at: _Operands, accumulator: Numbers, out: Element, model: Model) -> _Sum:
    depth = at.a.sign.shape[2]
    greatest = _counted(xp, accumulator.significand, accumulator.exponent)
    for k in range(depth):
        greatest = xp.maximum(greatest, _counted(xp, *at.term(k)))
    unit = xp.maximum(greatest, _LEAST_EXPONENT) - model.bits

    by = accumulator.exponent - out.fraction_bits - unit
    total = accumulator.sign * _shifted(xp, accumulator.significand, by)
    is_nan = accumulator.is_nan
    positive = accumulator.is_infinite & (accumulator.sign > 0)
    negative = accumulator.is_infinite & (accumulator.sign < 0)
    for k in range(depth):
        magnitude, exponent = at.term(k)
        sign = at.signs(k)
        total = total + sign * _shifted(xp, magnitude, exponent - at.fraction_bits - unit)
        nans, infinite = at.pair("is_nan", k), at.pair("is_infinite", k)
        either = infinite[0] | infinite[1]
        is_nan = is_nan | nans[0] | nans[1] | (either & (magnitude == 0))
        positive = positive | (either & (sign > 0))
        negative = negative | (either & (sign < 0))
    return _Sum(total, unit, is_nan | (positive & negative), positive, negative)


def _as_f16(xp: Any, bits: Array, element: Element) -> Array:
    """Bits of FP8 as bits of f16, which has E4M3's subnormal numbers as normal ones."""
    codes = np.arange(1 << 8)
    with np.errstate(over="ignore"):  # to infinity
        magnitude = abs(values(np, codes, element)).astype(np.float16).view(np.uint16)
    magnitude = np.where(decode(np, codes, element).is_nan, 0x7FFF, magnitude)
    return xp.asarray(magnitude | (codes >> 7) << 15)[bits]


def _on_host(array: Array) -> Array:
    return array if isinstance(array, np.ndarray) else array.get()


def _sum_of_two(xp: Any, c: Array, sums: Array, out: Element) -> Array:
    """c + sums rounded to nearest, by NumPy: CuPy takes subnormal float32 for zeros."""
    integer, real, nan = (
        (np.uint16, np.float16, 0x7FFF) if out is F16 else (np.uint32, np.float32, 0x7FFFFFFF)
    )
    addends = [_on_host(part.astype(integer)).view(real) for part in (c, sums)]
    with np.errstate(invalid="ignore", over="ignore"):
        total = addends[0] + addends[1]
    return xp.asarray(np.where(np.isnan(total), nan, total.view(integer).astype(np.int64)))


def _added_in_halves(xp: Any, a: Array, b: Array, c: Array, types: Types) -> Array:
    """First come the even pairs along K, then the odd ones."""
    ks = np.arange(a.shape[2])
    a, b = _as_f16(xp, a, types[0]), _as_f16(xp, b, types[1])
    sums = xp.zeros_like(c)
    for part in (ks % 4 < 2, ks % 4 >= 2):
        sums = multiply(xp, a[:, :, part], b[:, :, part], sums, (F16, F16, types[2]), Model())
    return _sum_of_two(xp, c, sums, types[2])


def multiply(xp: Any, a: Array, b: Array, c: Array, types: Types, model: Model) -> Array:
    """Bits [tiles, rows, columns] of D = A B^T + C, one instruction deep.

    a [tiles, rows, K], b [tiles, columns, K], c [tiles, rows, columns]; `types` is theirs.
    """
    if model.in_halves:
        return _added_in_halves(xp, a, b, c, types)
    at = _Operands(
        decode(xp, a, types[0]),
        decode(xp, b, types[1]),
        types[0].fraction_bits + types[1].fraction_bits,
    )
    out = types[2]
    return encode(xp, _add(xp, at, decode(xp, c, out), out, model), out, model)
