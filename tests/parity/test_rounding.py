"""Arithmetic and conversions that round in each mode, against exact fractions: bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from parity.exact_numbers import DOUBLE, MODES, SINGLE, Format, whole
from parity.expressions import evaluated

COUNT = 64
EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}
KINDS = {
    "float": ("f", SINGLE, np.float32, np.uint32),
    "double": ("d", DOUBLE, np.float64, np.uint64),
}


def numbers(kind: Any) -> tuple[Any, Any]:
    """Return numbers of all sizes, tiny and huge ones among them, and none that is 0."""
    random = np.random.default_rng(11)
    exponents = random.integers(-40, 40, (2, COUNT))
    a, b = (random.choice([-1, 1], (2, COUNT)) * random.uniform(1, 2, (2, COUNT))).astype(kind)
    a, b = np.ldexp(a, exponents[0]).astype(kind), np.ldexp(b, exponents[1]).astype(kind)
    limits = np.finfo(kind)
    a[:6] = [limits.max, limits.tiny, limits.smallest_subnormal * 3, 1, -limits.max, limits.tiny]
    b[:6] = [limits.max, limits.tiny * 1.5, -limits.smallest_subnormal, limits.eps / 2, 2, 3]
    return a, b


def root(x: Fraction, form: Format, mode: str) -> int:
    """Return the rounded square root: one of the neighbours of a near one, by its square."""
    digits = 2**700
    low = Fraction(math.isqrt(x.numerator * digits**2 // x.denominator), digits)
    exact = low * low == x
    return form.rounded(low if exact else low + Fraction(1, 2 * digits), mode)


@pytest.mark.parametrize("element", KINDS)
def test_arithmetic(backend: Any, element: str) -> None:
    letter, form, kind, word = KINDS[element]
    a, b = numbers(kind)
    x, y = form.values(a.view(word)), form.values(b.view(word))
    fused = ["__fmaf", "__fmaf_ieee"] if element == "float" else ["__fma"]
    expected: dict[str, list[int]] = {}
    for mode in MODES:
        zero_sign = int(mode == "rd")  # of a sum that cancels
        for name, exact in EXACT.items():
            expected[f"__{letter}{name}_{mode}(a, b)"] = [
                form.rounded(exact(u, v), mode, zero_sign=zero_sign)
                for u, v in zip(x, y, strict=True)
            ]
        for name in fused:
            expected[f"{name}_{mode}(a, b, a)"] = [
                form.rounded(u * v + u, mode, zero_sign=zero_sign)
                for u, v in zip(x, y, strict=True)
            ]
        expected[f"__{letter}rcp_{mode}(a)"] = [form.rounded(1 / u, mode) for u in x]
        expected[f"__{letter}sqrt_{mode}(fabs(a))"] = [root(abs(u), form, mode) for u in x]
    if element == "double":
        for mode, name in zip(MODES, ("Nearest", "Zero", "PosInf", "MinInf"), strict=True):
            expected[f"dadd(a, b, cudaRound{name})"] = expected[f"__dadd_{mode}(a, b)"]
    as_bits = {"float": "__float_as_uint", "double": "__double_as_longlong"}[element]
    codes = [f"{as_bits}({code})" for code in expected]

    rows = evaluated(backend, codes, {"a": a, "b": b}, word)

    for row, (code, values) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == values, code


INTEGERS = {
    "int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64
}  # fmt: skip


def saturated(x: float, kind: Any, mode: str, is_wide: bool) -> int:
    """Return what cvt makes of a number: PTX ISA, cvt."""
    limits = np.iinfo(kind)
    if math.isnan(x):
        return 1 << limits.bits - 1 if is_wide else 0
    if math.isinf(x):
        return int(limits.max if x > 0 else limits.min)
    return min(max(whole(Fraction(x), mode), int(limits.min)), int(limits.max))


@pytest.mark.parametrize("element", KINDS)
def test_floats_become_integers(backend: Any, element: str) -> None:
    random = np.random.default_rng(11)
    _, _, kind, _ = KINDS[element]
    edges = [0, 0.5, 1.5, -2.5, 0.4999, 3e9, -3e9, 1e20, -1e20, np.nan, np.inf, -np.inf, 2**31,
             2**32, -(2**31), 2**63, -(2**63), 2**64, 1e-40, -0.0]  # fmt: skip
    a = np.concatenate([edges, random.normal(0, 1e4, COUNT - len(edges))]).astype(kind)
    expected = {
        f"(unsigned long long)__{element}2{name}_{mode}(a)": [
            saturated(float(x), whole_kind, mode, element == "double" or name in ("ll", "ull"))
            for x in a
        ]
        for name, whole_kind in INTEGERS.items()
        for mode in MODES
    }

    rows = evaluated(backend, list(expected), {"a": a}, np.uint64)

    for row, (code, values) in zip(rows, expected.items(), strict=True):
        bits = 64 if "ll_" in code else 32
        assert [int(word) % 2**bits for word in row] == [word % 2**bits for word in values], code


def test_maxima_order_zeros_and_pass_over_nan(backend: Any) -> None:
    # Both zeros, 1, -2.5, infinity, a quiet and a signalling NaN.
    words = [0, 0x80000000, 0x3F800000, 0xC0200000, 0x7F800000, 0x7FC00000, 0x7FA00000]
    grids = np.meshgrid(*[np.array(words, np.uint32).view(np.float32)] * 2)
    is_nan = [np.isnan(grid) for grid in grids]
    a, b = (grid[~(is_nan[0] & is_nan[1])] for grid in grids)
    expected = {}
    for name, choose in (("max", max), ("min", min)):
        wanted = [
            x if math.isnan(y) else y if math.isnan(x) else choose(x, y, key=signed)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        for code in (f"f{name}f(a, b)", f"{name}(a, b)", f"f{name}(a, b)"):
            expected[f"__float_as_uint({code})"] = np.array(wanted, np.float32).view(np.uint32)
        of_doubles = f"f{name}((double)a, (double)b)"
        expected[f"__float_as_uint((float){of_doubles})"] = expected[f"__float_as_uint({code})"]

    rows = evaluated(backend, list(expected), {"a": a, "b": b}, np.uint32)

    for row, (code, bits) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == bits.tolist(), code


def signed(x: float) -> tuple[float, float]:
    """Order -0 below 0."""
    return x, math.copysign(1.0, x)


def to_long(x: float, function: Callable[[Fraction], int]) -> int:
    """Return the result of lrint or lround, which saturates out of range."""
    if math.isnan(x) or math.isinf(x):
        return 2**63 - 1 if x > 0 else -(2**63)
    return min(max(function(Fraction(x)), -(2**63)), 2**63 - 1)


def away_from_zero(x: Fraction) -> int:
    return int(math.copysign(math.floor(abs(x) + Fraction(1, 2)), x))


@pytest.mark.parametrize("element", KINDS)
def test_numbers_are_rounded_to_long(backend: Any, element: str) -> None:
    letter, _, kind, _ = KINDS[element]
    edges = [0.5, 1.5, -2.5, 0.49999997, 3e9, 1e20, -1e20, np.nan, np.inf, -np.inf, 2**63]
    a = np.array([*edges, *np.random.default_rng(12).normal(0, 1e4, 20)], kind)
    suffix = letter if letter == "f" else ""
    expected = {
        f"{name}(a)": [to_long(float(x), function) for x in a]
        for stem, function in (("rint", round), ("round", away_from_zero))
        for name in (f"l{stem}{suffix}", f"ll{stem}{suffix}", f"l{stem}", f"ll{stem}")
    }

    rows = evaluated(backend, list(expected), {"a": a}, np.int64)

    for row, (code, values) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == values, code


def test_integers_become_floats(backend: Any) -> None:
    random = np.random.default_rng(11)
    edges = [
        0,
        1,
        -1,
        2**24 + 1,
        2**25 + 2,
        2**53 + 1,
        2**62 + 2**8,
        2**63 - 1,
        -(2**63),
        2**40 - 1,
    ]
    shifts = random.integers(0, 60, COUNT - len(edges))
    a = np.array([*edges, *(random.integers(-(2**63), 2**63 - 1, len(shifts)) >> shifts)], np.int64)
    expected: dict[str, list[int]] = {}
    for name, kind in INTEGERS.items():
        cast = {"int": "int", "uint": "unsigned", "ll": "long long", "ull": "unsigned long long"}
        values = [Fraction(int(x)) for x in a.astype(kind)]
        for mode in MODES:
            for letter, form, as_bits in (
                ("float", SINGLE, "__float_as_uint"),
                ("double", DOUBLE, "__double_as_longlong"),
            ):
                if letter == "double" and name in ("int", "uint") and mode != "rn":
                    continue  # always exact, and CUDA has none
                code = f"{as_bits}(__{name}2{letter}_{mode}(({cast[name]})a))"
                expected[code] = [form.rounded(value, mode) for value in values]

    rows = evaluated(backend, list(expected), {"a": a}, np.uint64)

    for row, (code, wanted) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == wanted, code


def test_doubles_become_floats_and_bits_stay(backend: Any) -> None:
    a, _ = numbers(np.float64)
    a[6:10] = [1 + 2**-24, 1 + 3 * 2**-24, 1e-42, -1e39]
    x = DOUBLE.values(a.view(np.uint64))
    expected = {
        f"__float_as_uint(__double2float_{mode}(a))": [SINGLE.rounded(value, mode) for value in x]
        for mode in MODES
    }
    bits = a.view(np.uint64).tolist()
    expected |= {
        "__double_as_longlong(a)": bits,
        "(unsigned)__double2hiint(a)": [word >> 32 for word in bits],
        "(unsigned)__double2loint(a)": [word & 0xFFFFFFFF for word in bits],
        "__double_as_longlong(__hiloint2double(__double2hiint(a), __double2loint(a)))": bits,
        "__double_as_longlong(__longlong_as_double(__double_as_longlong(a) ^ 5))": [
            word ^ 5 for word in bits
        ],
        "__float_as_uint(__uint_as_float(0x7fc12345u))": [0x7FC12345] * COUNT,
        "(unsigned)__float_as_int(__int_as_float(0x81234567))": [0x81234567] * COUNT,
    }

    rows = evaluated(backend, list(expected), {"a": a}, np.uint64)

    for row, (code, values) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == values, code
