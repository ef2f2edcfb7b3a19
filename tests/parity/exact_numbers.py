"""Exact fractions rounded to a format of floating point, in any mode: an oracle of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["BFLOAT16", "DOUBLE", "HALF", "MODES", "SINGLE", "Format", "whole"]

MODES = ("rn", "rz", "ru", "rd")


def whole(x: Fraction, mode: str) -> int:
    """Return the integer next to x that the mode picks: rn rounds ties to even."""
    if mode == "rn":
        return round(x)
    if mode == "rz":
        return math.trunc(x)
    return math.ceil(x) if mode == "ru" else math.floor(x)


@dataclass(frozen=True)
class Format:
    """A binary format of IEEE 754's kind: its width, and its digits with the hidden one."""

    bits: int
    digits: int

    @property
    def bias(self) -> int:
        return (1 << self.bits - self.digits - 1) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.bits - self.digits) - 1) << self.digits - 1

    @property
    def nan(self) -> int:
        return (1 << self.bits - 1) - 1

    def rounded(self, x: Fraction, mode: str = "rn", *, zero_sign: int = 0) -> int:
        """Return the bits of the nearest number on the side that the mode asks for."""
        sign = int(x < 0) if x else zero_sign
        if not x:
            return sign << self.bits - 1
        exponent = math.floor(math.log2(abs(x.numerator)) - math.log2(x.denominator))
        while abs(x) >= Fraction(2) ** (exponent + 1):
            exponent += 1
        while abs(x) < Fraction(2) ** exponent:
            exponent -= 1
        exponent = max(exponent, 1 - self.bias)
        unit = Fraction(2) ** (exponent - self.digits + 1)
        count = abs(whole(x / unit, mode))
        # The hidden digit of a normal number carries into the exponent.
        bits = ((exponent + self.bias - 1) << self.digits - 1) + count
        if bits >= self.infinity:
            grows = mode == "rn" or mode == ("rd" if sign else "ru")
            bits = self.infinity - (0 if grows else 1)
        return bits | sign << self.bits - 1

    def value(self, bits: int) -> Fraction | None:
        """Return what the bits stand for, None for infinities and NaN."""
        magnitude = bits & ((1 << self.bits - 1) - 1)
        if magnitude >= self.infinity:
            return None
        exponent, digits = divmod(magnitude, 1 << self.digits - 1)
        if exponent:
            digits += 1 << self.digits - 1
        scale = Fraction(2) ** (max(exponent, 1) - self.bias - self.digits + 1)
        return digits * scale * (-1 if bits >> self.bits - 1 else 1)

    def values(self, array: Any) -> list[Fraction]:
        """Return the exact values of finite elements, which are given by their bits."""
        found = [self.value(int(bits)) for bits in np.asarray(array).ravel()]
        return [value for value in found if value is not None]


SINGLE, DOUBLE = Format(32, 24), Format(64, 53)
HALF, BFLOAT16 = Format(16, 11), Format(16, 8)
