"""The arithmetic of tcgen05.mma in Python's integers, one element of D at a time.

Written from what is measured on a B200 (github.com/sf-tensor/tcgen05, MODEL.md), without the
emulator's code.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from emulate.tcgen05.tcgen05_library import Instruction, Scales

NAN, POSITIVE, NEGATIVE = "nan", "+inf", "-inf"

# exponent bits, mantissa bits, how the greatest exponent is used
_FORMATS = {
    "f32": (8, 23, "ieee"),
    "tf32": (8, 10, "ieee"),
    "bf16": (8, 7, "ieee"),
    "f16": (5, 10, "ieee"),
    "e5m2": (5, 2, "ieee"),
    "e4m3": (4, 3, "nan"),
    "e2m3": (2, 3, ""),
    "e3m2": (3, 2, ""),
    "e2m1": (2, 1, ""),
}


@dataclass(frozen=True)
class Number:
    value: Fraction
    exponent: int  # as encoded; a subnormal number has the least normal exponent

    def times(self, *others: Number) -> Number:
        result = self
        for other in others:
            result = Number(result.value * other.value, result.exponent + other.exponent)
        return result


ZERO = Number(Fraction(0), 0)


@functools.cache
def decode(kind: str, code: int) -> Number | str:
    if kind == "tf32":
        code >>= 13
    exponent_bits, mantissa_bits, top = _FORMATS[kind]
    mantissa = code & ((1 << mantissa_bits) - 1)
    field = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    sign = -1 if code >> (exponent_bits + mantissa_bits) & 1 else 1
    is_top = field == (1 << exponent_bits) - 1
    if is_top and top == "ieee":
        return NAN if mantissa else POSITIVE if sign > 0 else NEGATIVE
    if is_top and top == "nan" and mantissa == (1 << mantissa_bits) - 1:
        return NAN
    exponent = max(field, 1) - ((1 << (exponent_bits - 1)) - 1)
    whole = mantissa + (1 << mantissa_bits if field else 0)
    return Number(sign * whole * power(exponent - mantissa_bits), exponent)


@functools.cache
def decode_scale(scales: Scales, code: int) -> Number | str:
    if scales == Scales.UE4M3:
        return decode("e4m3", code & 0x7F)
    return NAN if code == 255 else Number(power(code - 127), code - 127)


@functools.cache
def power(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def cut(value: Fraction, unit: int) -> Fraction:
    """Return the value towards zero, a multiple of 2**unit."""
    scaled = abs(value) / power(unit)
    whole = scaled.numerator // scaled.denominator
    return (whole if value > 0 else -whole) * power(unit)


# --- rounding ------------------------------------------------------------------------------------


def encode(value: Fraction, kind: str) -> int:
    """Return the code of f32, rounded towards zero, or of f16, rounded to the nearest even."""
    exponent_bits, mantissa_bits, _ = _FORMATS[kind]
    bias = (1 << (exponent_bits - 1)) - 1
    sign = (1 << (exponent_bits + mantissa_bits)) if value < 0 else 0
    magnitude = abs(value)
    exponent = 1 - bias
    while magnitude >= power(exponent + 1):
        exponent += 1
    unit = exponent - mantissa_bits
    scaled = magnitude / power(unit)
    whole = scaled.numerator // scaled.denominator
    if kind == "f16":
        whole = round(scaled)
        if whole == 2 << mantissa_bits:
            whole, exponent = whole // 2, exponent + 1
    if whole == 0:
        return 0
    if exponent > bias:
        return sign | ((1 << exponent_bits) - 1) << mantissa_bits
    field = exponent + bias if whole >> mantissa_bits else 0
    return sign | field << mantissa_bits | whole & ((1 << mantissa_bits) - 1)


_SPECIAL = {
    "f32": {NAN: 0x7FFFFFFF, POSITIVE: 0x7F800000, NEGATIVE: 0xFF800000},
    "f16": {NAN: 0x7FFF, POSITIVE: 0x7C00, NEGATIVE: 0xFC00},
}


# --- one element ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    number: Number  # with its scale factors
    scale: int  # exponent of both scale factors
    k: int


def special_term(a: Number | str, b: Number | str) -> str | None:
    """Return its class if it is no finite number."""
    if NAN in (a, b):
        return NAN
    if not isinstance(a, str) and not isinstance(b, str):
        return None
    signs = []
    for one in (a, b):
        if isinstance(one, Number):
            if one.value == 0:
                return NAN
            signs.append(one.value < 0)
        else:
            signs.append(one == NEGATIVE)
    return NEGATIVE if signs[0] != signs[1] else POSITIVE


def element(
    instruction: Instruction,
    a: Sequence[int],
    b: Sequence[int],
    word: int,
    *,
    a_scales: Sequence[int] = (),
    b_scales: Sequence[int] = (),
    indices: Sequence[int] | None = None,
    scale_input_d: int = 0,
    is_of_warp: bool = False,
) -> int:
    """Return D's word.

    ``a`` has the stored elements of a row, ``indices`` where they are along K; ``b`` a column.
    ``is_of_warp`` is the arithmetic of mma.sync.
    """
    if instruction.kind == "i8":
        return integer_element(instruction, a, b, word, indices)
    places = list(range(len(a))) if indices is None else indices
    found = []
    for code, k in zip(a, places, strict=True):
        block = k * instruction.scale_count // instruction.k
        codes = (a_scales[block], b_scales[block]) if instruction.is_scaled else ()
        found.append(term_of(instruction, (code, b[k]), codes, k))
    specials = [term for term in found if isinstance(term, str)]
    terms = [term for term in found if isinstance(term, Term) and term.number.value]
    old = decode(instruction.d, word)
    if isinstance(old, str):
        specials.append(old)
        old = ZERO
    if specials:
        is_nan = NAN in specials or {POSITIVE, NEGATIVE} <= set(specials)
        return _SPECIAL[instruction.d][NAN if is_nan else specials[0]]
    if instruction.is_scaled and not terms:
        return word
    old = Number(old.value * power(-scale_input_d), old.exponent - scale_input_d)
    if not terms and not old.value:
        return 0
    if is_of_warp and instruction.kind in ("mxf4", "mxf4nvf4"):
        return encode(sum_of_warp(instruction, terms, old), instruction.d)
    return encode(finite_sum(instruction, terms, old), instruction.d)


def term_of(
    instruction: Instruction, codes: tuple[int, int], scale_codes: tuple[int, ...], k: int
) -> Term | str:
    """Return the term, or its class if it is no finite number."""
    a, b = (
        _negated(decode(kind, code)) if negates else decode(kind, code)
        for kind, code, negates in zip(
            (instruction.a, instruction.b), codes, instruction.negates, strict=True
        )
    )
    scales = [decode_scale(instruction.scales, code) for code in scale_codes]
    if NAN in scales:
        return NAN
    special = special_term(a, b)
    if special:
        return special
    factors = [one for one in (a, b, *scales) if isinstance(one, Number)]
    exponent = sum(one.exponent for one in scales if isinstance(one, Number))
    return Term(factors[0].times(*factors[1:]), exponent, k)


def _negated(one: Number | str) -> Number | str:
    if isinstance(one, Number):
        return Number(-one.value, one.exponent)
    return {POSITIVE: NEGATIVE, NEGATIVE: POSITIVE}.get(one, one)


def finite_sum(instruction: Instruction, terms: list[Term], old: Number) -> Fraction:
    if instruction.kind not in ("mxf4", "mxf4nvf4"):
        exponents = [term.number.exponent for term in terms]
        unit = max([*exponents, *([old.exponent] if old.value else [])]) - 25
        return cut(old.value, unit) + sum(cut(term.number.value, unit) for term in terms)
    if instruction.scales == Scales.UE4M3:
        return sum_of_e4m3(instruction, terms, old)
    return sum_of_e8m0(instruction, terms, old)


def grouped(terms: list[Term], size: int) -> list[list[Term]]:
    groups: dict[int, list[Term]] = {}
    for term in terms:
        groups.setdefault(term.k // size, []).append(term)
    return list(groups.values())


def total(group: list[Term]) -> Fraction:
    return sum((term.number.value for term in group), Fraction(0))


def sum_of_e4m3(instruction: Instruction, terms: list[Term], old: Number) -> Fraction:
    greatest = max(term.number.exponent for term in terms)
    if old.value and old.exponent >= greatest:
        unit = old.exponent - 35
        size = instruction.k // instruction.scale_count
    else:
        top = max(greatest, old.exponent) if old.value else greatest
        unit = max(top - 39, max(term.scale for term in terms) - 35)
        size = 4
    return cut(old.value, unit) + sum(cut(total(group), unit) for group in grouped(terms, size))


def sum_of_e8m0(instruction: Instruction, terms: list[Term], old: Number) -> Fraction:
    greatest_scale = max(term.scale for term in terms)
    unit = max(max(term.number.exponent for term in terms) - 39, greatest_scale - 35)
    if old.value:
        unit = max(unit, old.exponent - 39)
    groups = grouped(terms, 32 if instruction.is_sparse else 16)
    parts: list[tuple[Fraction, int]] = []
    for group in groups:
        coarse = unit
        if old.value and old.exponent >= max(term.number.exponent for term in group):
            coarse = max(unit, old.exponent - 35)
        parts.append((cut(total(group), coarse), group[0].scale))
    first = cut(old.value, unit)
    result = first + sum(part for part, _ in parts)
    if not 0 < encode(result, "f32") & 0x7FFFFFFF < 1 << 23:
        return result
    floor = power(max(unit, -174))
    kept = [part for part, scale in parts if scale == greatest_scale or abs(part) >= floor]
    return first + sum(kept)


def sum_of_warp(instruction: Instruction, terms: list[Term], old: Number) -> Fraction:
    """MMA-Sim, arXiv 2511.10909: 35 bits below scale factors and D, every K = 16 summed exactly.

    Of sparse A 32, which has 16 elements: nobody has measured it.
    """
    unit = max([*(term.scale for term in terms), *([old.exponent] if old.value else [])]) - 35
    return cut(old.value, unit) + sum(
        cut(total(group), unit) for group in grouped(terms, 32 if instruction.is_sparse else 16)
    )


def integer_element(
    instruction: Instruction,
    a: Sequence[int],
    b: Sequence[int],
    word: int,
    indices: Sequence[int] | None,
) -> int:
    places = range(len(a)) if indices is None else indices

    def value(kind: str, code: int) -> int:
        return code - 256 if kind == "s8" and code > 127 else code

    result = word - (1 << 32) if word >> 31 else word
    for code, k in zip(a, places, strict=True):
        result += value(instruction.a, code) * value(instruction.b, b[k])
    if instruction.saturates:
        result = min(max(result, -(1 << 31)), (1 << 31) - 1)
    return result & 0xFFFFFFFF
