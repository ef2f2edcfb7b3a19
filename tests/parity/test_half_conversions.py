"""Conversions to and from half precision, bfloat16 and float8, against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.exact_numbers import BFLOAT16, HALF, MODES, SINGLE, Format, whole
from parity.expressions import evaluated

KINDS = {"half": HALF, "bfloat16": BFLOAT16}
INTEGERS = {
    "short": ("short", np.int16),
    "ushort": ("unsigned short", np.uint16),
    "int": ("int", np.int32),
    "uint": ("unsigned", np.uint32),
    "ll": ("long long", np.int64),
    "ull": ("unsigned long long", np.uint64),
}
SMALL = {"char": np.int8, "uchar": np.uint8}


def compare(backend: Any, expected: dict[str, list[int]], a: Any, result: Any) -> None:
    rows = evaluated(backend, list(expected), {"a": a}, result)
    bits = np.iinfo(result).bits
    for row, (code, values) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == [value % 2**bits for value in values], code


@pytest.mark.parametrize("name", KINDS)
def test_integers_are_rounded(backend: Any, name: str) -> None:
    random = np.random.default_rng(17)
    form = KINDS[name]
    edges = [0, 1, -1, 257, 2049, 2050, 65519, 65520, 2**31 - 1, 2**40 + 2**32 + 1, 2**63 - 1]
    shifts = random.integers(0, 62, 64 - len(edges))
    a = np.array([*edges, *(random.integers(-(2**63), 2**63 - 1, len(shifts)) >> shifts)], np.int64)
    expected = {}
    for short, (cast, kind) in INTEGERS.items():
        values = [Fraction(int(x)) for x in a.astype(kind)]
        for mode in MODES:
            code = f"__{name}_as_ushort(__{short}2{name}_{mode}(({cast})a))"
            expected[code] = [form.rounded(value, mode) for value in values]
    compare(backend, expected, a, np.uint16)


def integer_of(bits: int, form: Format, kind: Any, mode: str) -> int:
    """Return what cvt makes of a number: PTX ISA, cvt."""
    limits, value = np.iinfo(kind), form.value(bits)
    if bits & 0x7FFF > form.infinity:
        return 1 << 63 if limits.bits == 64 else 0
    if value is None:
        return int(limits.min if bits >> 15 else limits.max)
    return min(max(whole(value, mode), int(limits.min)), int(limits.max))


@pytest.mark.parametrize("name", KINDS)
def test_they_become_integers(backend: Any, name: str) -> None:
    random = np.random.default_rng(17)
    form = KINDS[name]
    edges = [0, 0x8000, form.infinity, form.infinity | 0x8000, form.nan, 1, form.infinity - 1]
    a = np.concatenate([edges, random.integers(0, 2**16, 185)]).astype(np.uint16)
    a[7::3] = np.array([form.rounded(Fraction(x)) for x in random.normal(0, 99, len(a[7::3]))])
    given = f"__ushort_as_{name}(a)"
    expected = {
        f"(unsigned long long)__{name}2{short}_{mode}({given})": [
            integer_of(int(bits), form, kind, mode) for bits in a
        ]
        for short, (_, kind) in INTEGERS.items()
        for mode in MODES
    } | {
        f"(unsigned long long)__{name}2{short}_rz({given})": [
            integer_of(int(bits), form, kind, "rz") for bits in a
        ]
        for short, kind in SMALL.items()
    }
    compare(backend, expected, a, np.uint64)


@pytest.mark.parametrize("name", KINDS)
def test_floats_are_rounded(backend: Any, name: str) -> None:
    random = np.random.default_rng(17)
    form = KINDS[name]
    a = np.ldexp(random.uniform(-2, 2, 128), random.integers(-30, 20, 128)).astype(np.float32)
    a[:8] = [65504, 65519.9, 65520, 3.4e38, 6e-8, 1e-45, -0.0, 1 + 2**-11]
    x = SINGLE.values(a.view(np.uint32))
    signs = np.signbit(a)

    def rounded(values: list[Fraction], mode: str = "rn") -> list[int]:
        pairs = zip(values, signs, strict=True)
        return [form.rounded(value, mode, zero_sign=int(sign)) for value, sign in pairs]

    as_bits = f"__{name}_as_ushort"
    expected = {f"{as_bits}(__float2{name}_{mode}(a))": rounded(x, mode) for mode in MODES}
    expected[f"{as_bits}(__float2{name}(a))"] = rounded(x)
    expected[f"{as_bits}(__double2{name}(a * (1.0 + 0x1p-40)))"] = rounded(
        [value * (1 + Fraction(1, 2**40)) for value in x]
    )
    short = "half" if name == "half" else "bfloat16"
    pair = {"half": "__float22half2_rn", "bfloat16": "__float22bfloat162_rn"}[name]
    both = f"{pair}(make_float2(a, -a))"
    expected[f"{as_bits}(__low2{short}({both}))"] = rounded(x)
    expected[f"{as_bits}(__high2{short}({both}))"] = [bits ^ 0x8000 for bits in rounded(x)]
    compare(backend, expected, a, np.uint16)


@pytest.mark.parametrize("name", KINDS)
def test_they_become_floats(backend: Any, name: str) -> None:
    random = np.random.default_rng(17)
    form = KINDS[name]
    a = random.integers(0, 2**16, 256).astype(np.uint16)
    a = np.where(a & 0x7FFF > form.infinity, 0x8000, a).astype(np.uint16)
    dtype = np.float16 if name == "half" else ml_dtypes.bfloat16
    bits = a.view(dtype).astype(np.float32).view(np.uint32).tolist()
    compare(
        backend, {f"__float_as_uint(__{name}2float(__ushort_as_{name}(a)))": bits}, a, np.uint32
    )


FLOAT8 = {"E4M3": (ml_dtypes.float8_e4m3fn, 448), "E5M2": (ml_dtypes.float8_e5m2, 57344)}


@pytest.mark.parametrize("name", FLOAT8)
def test_float8(backend: Any, name: str) -> None:
    random = np.random.default_rng(17)
    dtype, most = FLOAT8[name]
    a = np.concatenate([random.normal(0, 100, 120), [1e9, -1e9, 0, -0.0, 1e-9, 464, 2**-9, 61440]])
    a = a.astype(np.float32)
    saturated = np.clip(a, -most, most).astype(dtype)
    codes = np.arange(len(a), dtype=np.uint8)
    finite = np.isfinite(codes.view(dtype).astype(np.float32))
    halves = np.where(finite, codes.view(dtype).astype(np.float16), np.float16(0))
    expected = {
        f"__nv_cvt_float_to_fp8(a, __NV_SATFINITE, __NV_{name})": saturated.view(np.uint8).tolist(),
        f"i < {len(a)} && __nv_cvt_fp8_to_halfraw(i, __NV_{name}).x < 0x7c00 ? "
        f"__nv_cvt_fp8_to_halfraw(i, __NV_{name}).x : 0": halves.view(np.uint16).tolist(),
    }
    compare(backend, expected, a, np.uint16)
