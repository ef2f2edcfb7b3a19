"""What instructions of inline PTX compute, in Python's integers and fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["BF16", "E4M3", "E5M2", "F16", "F32", "TF32", "Format", "each", "signed"]


class Format:
    """A float of some bits of exponent and mantissa, by its bits."""

    def __init__(self, exponent: int, mantissa: int, *, has_infinity: bool = True) -> None:
        self.exponent, self.mantissa, self.has_infinity = exponent, mantissa, has_infinity
        self.bias = 2 ** (exponent - 1) - 1
        self.sign = 1 << (exponent + mantissa)
        self.infinity = (2**exponent - 1) << mantissa
        self.largest = self.infinity - 1 if has_infinity else self.sign - 2
        self.nan = self.sign - 1

    def value(self, bits: int) -> Fraction | float:
        """Return the number that the bits stand for; a float for those that are none."""
        size, negative = bits & (self.sign - 1), bool(bits & self.sign)
        if size > self.largest and not (self.has_infinity and size == self.infinity):
            return math.nan
        if self.has_infinity and size == self.infinity:
            return -math.inf if negative else math.inf
        field, digits = size >> self.mantissa, size & (2**self.mantissa - 1)
        hidden = 2**self.mantissa if field else 0
        power = max(field, 1) - self.bias - self.mantissa
        number: Fraction = Fraction(hidden + digits) * Fraction(2) ** power
        return Fraction(-number if negative else number)

    def bits(
        self, number: Fraction | float, mode: str = "rn", *, saturates: bool = False, zero: int = 0
    ) -> int:
        """Round a number; `zero` are the bits of a zero's sign."""
        over = self.largest if saturates else self.infinity if self.has_infinity else self.nan
        if isinstance(number, float):
            if math.isnan(number):
                return self.nan
            if math.isinf(number):
                return (self.sign if number < 0 else 0) | over
            number = Fraction(number)
        if number == 0:
            return zero
        sign, size = (self.sign if number < 0 else 0), abs(number)
        power = max(self._power(size), 1 - self.bias)
        unit = Fraction(2) ** (power - self.mantissa)
        whole, rest = divmod(size / unit, 1)
        up: bool = {
            "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
            "rna": rest >= Fraction(1, 2),
            "rz": False,
            "rm": bool(sign) and rest > 0,
            "rp": not sign and rest > 0,
        }[mode]
        word: int = ((power + self.bias - 1) << self.mantissa) + int(whole) + up
        if word > self.largest:
            toward_zero = mode == "rz" or mode == ("rp" if sign else "rm")
            return sign | (self.largest if toward_zero and self.has_infinity else over)
        return sign | word

    @staticmethod
    def _power(size: Fraction) -> int:
        power = size.numerator.bit_length() - size.denominator.bit_length()
        return power if Fraction(2) ** power <= size else power - 1


F32 = Format(8, 23)
F16 = Format(5, 10)
BF16 = Format(8, 7)
TF32 = Format(8, 10)
E4M3 = Format(4, 3, has_infinity=False)
E5M2 = Format(5, 2)


def each(compute: Callable[..., int], *words: Any) -> Any:
    """Apply a function of Python integers to the words of each thread."""
    rows = zip(*words, strict=True)
    return np.array([int(compute(*map(int, row))) & 0xFFFFFFFF for row in rows], np.uint32)


def signed(word: int, bits: int = 32) -> int:
    """Return the integer of two's complement.

    >>> signed(0xFFFFFFFF)
    -1
    """
    word &= 2**bits - 1
    return word - 2**bits if word >> (bits - 1) else word
