"""Mathematical functions within the errors that CUDA's guides state for the chip.

CUDA C++ Programming Guide, "Mathematical Functions": the largest error of each function, in units
of the last place (ulp). Each limit here is one ulp more, for the oracle's own rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.exact_numbers import BFLOAT16, HALF
from parity.expressions import evaluated

from tmaasync import Kernel

COUNT = 64
POINTS = np.linspace(-math.pi, math.pi, 128, endpoint=False)
Numbers = Any


def by_element(change: Callable[..., float]) -> Callable[..., Numbers]:
    return lambda *values: np.array([change(*each) for each in zip(*values, strict=True)])


def erfcx(x: float) -> float:
    if x < 2:
        return math.exp(x * x) * math.erfc(x)
    fraction = x
    for step in range(200, 0, -1):
        fraction = x + step / 2 / fraction
    return 1 / (fraction * math.sqrt(math.pi))


def bessel_j(order: int) -> Callable[[Numbers], Numbers]:
    """Bessel's integral, by the trapezoidal rule, which is exact for it but for rounding."""
    return lambda x: np.cos(order * POINTS - np.outer(x, np.sin(POINTS))).mean(1)


def bessel_i(order: int) -> Callable[[Numbers], Numbers]:
    return lambda x: (np.exp(np.outer(x, np.cos(POINTS))) * np.cos(order * POINTS)).mean(1)


def inverse(p: float) -> float:
    return NormalDist().inv_cdf(p)


def inverse_erf(u: float) -> float:
    t = inverse((1 + u) / 2) / math.sqrt(2)
    return t - (math.erf(t) - u) * math.sqrt(math.pi) / 2 * math.exp(t * t)


# Expressions of double's functions: u lies between -1 and 1, p between 0 and 1, x anywhere, y is
# positive. With the errors of double's and of float's.
FUNCTIONS: dict[str, tuple[Callable[..., Numbers], int, int]] = {
    "sin(x)": (np.sin, 2, 2),
    "cos(x)": (np.cos, 2, 2),
    "tan(x)": (np.tan, 2, 4),
    "asin(u)": (np.arcsin, 2, 2),
    "acos(u)": (np.arccos, 2, 2),
    "atan(x)": (np.arctan, 2, 2),
    "atan2(x, y)": (np.arctan2, 2, 3),
    "sinh(x)": (np.sinh, 2, 3),
    "cosh(x)": (np.cosh, 1, 2),
    "tanh(x)": (np.tanh, 1, 2),
    "asinh(x)": (np.arcsinh, 3, 3),
    "acosh(1 + y)": (lambda y: np.arccosh(1 + y), 3, 4),
    "atanh(u)": (np.arctanh, 2, 3),
    "exp(x)": (np.exp, 1, 2),
    "exp2(x)": (np.exp2, 1, 2),
    "exp10(x)": (by_element(lambda x: math.pow(10, x)), 1, 2),
    "expm1(x)": (np.expm1, 1, 1),
    "log(y)": (np.log, 1, 1),
    "log2(y)": (np.log2, 1, 1),
    "log10(y)": (np.log10, 1, 2),
    "log1p(y)": (np.log1p, 1, 1),
    "pow(y, x)": (np.power, 2, 4),
    "sqrt(y)": (np.sqrt, 0, 0),
    "rsqrt(y)": (lambda y: 1 / np.sqrt(y), 1, 2),
    "cbrt(x)": (np.cbrt, 1, 1),
    "rcbrt(x)": (lambda x: 1 / np.cbrt(x), 1, 1),
    "hypot(x, y)": (np.hypot, 2, 3),
    "rhypot(x, y)": (lambda x, y: 1 / np.hypot(x, y), 1, 2),
    "norm3d(x, y, u)": (lambda *v: np.sqrt(sum(each**2 for each in v)), 1, 3),
    "rnorm3d(x, y, u)": (lambda *v: 1 / np.sqrt(sum(each**2 for each in v)), 1, 2),
    "norm4d(x, y, u, p)": (lambda *v: np.sqrt(sum(each**2 for each in v)), 1, 3),
    "rnorm4d(x, y, u, p)": (lambda *v: 1 / np.sqrt(sum(each**2 for each in v)), 1, 2),
    "sinpi(u)": (lambda u: np.copysign(np.sin(np.pi * (0.5 - np.abs(np.abs(u) - 0.5))), u), 4, 1),
    "cospi(u)": (lambda u: np.sin(np.pi * (0.5 - np.abs(u))), 4, 1),
    "erf(x)": (by_element(math.erf), 2, 2),
    "erfc(x)": (by_element(math.erfc), 5, 4),
    "erfcx(y)": (by_element(erfcx), 30, 4),
    "erfinv(u)": (by_element(inverse_erf), 30, 2),
    "erfcinv(2 * p)": (by_element(lambda p: -inverse(p) / math.sqrt(2)), 30, 4),
    "normcdf(x)": (by_element(lambda x: math.erfc(-x / math.sqrt(2)) / 2), 60, 5),
    "normcdfinv(p)": (by_element(inverse), 30, 5),
    "lgamma(y + 3)": (by_element(lambda y: math.lgamma(y + 3)), 20, 10),
    "tgamma(y)": (by_element(math.gamma), 10, 5),
    "fdim(x, y)": (lambda x, y: np.maximum(x - y, 0), 0, 0),
    "fmod(x, y)": (np.fmod, 0, 0),
    "remainder(x, y)": (by_element(math.remainder), 0, 0),
    "ldexp(x, 3)": (lambda x: 8 * x, 0, 0),
    "copysign(y, x)": (np.copysign, 0, 0),
    "nearbyint(x)": (np.rint, 0, 0),
    "round(x)": (lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), 0, 0),
    "fma(x, y, u)": (by_element(lambda x, y, u: math.fsum([x * y, u])), 1, 1),
}
# With errors that the guide states as absolute ones.
BESSEL: dict[str, tuple[Callable[..., Numbers], float]] = {
    "j0(y)": (bessel_j(0), 3e-6),
    "j1(y)": (bessel_j(1), 3e-6),
    "jn(3, y)": (bessel_j(3), 3e-6),
    "cyl_bessel_i0(y)": (bessel_i(0), 3e-6),
    "cyl_bessel_i1(y)": (bessel_i(1), 3e-6),
    "j1(y) * y0(y) - j0(y) * y1(y)": (lambda y: 2 / np.pi / y, 3e-6),
    "yn(2, y) - 2 / y * y1(y) + y0(y)": (lambda y: 0 * y, 3e-5),
}


def arguments(kind: Any) -> dict[str, Any]:
    random = np.random.default_rng(19)
    found = {
        "u": random.uniform(-0.99, 0.99, COUNT),
        "p": random.uniform(0.001, 0.999, COUNT),
        "x": random.normal(0, 3, COUNT),
        "y": random.uniform(0.05, 8, COUNT),
    }
    return {name: values.astype(kind) for name, values in found.items()}


def wanted(code: str, oracle: Callable[..., Numbers], values: dict[str, Any]) -> Numbers:
    """Return the oracle's results, for the arguments in the expression's order."""
    names = dict.fromkeys(re.findall(r"\b[upxy]\b", code[code.index("(") :]))
    return oracle(*(values[name].astype(np.float64) for name in names))


def close(got: Any, want: Any, kind: Any, ulps: float, absolute: float = 0) -> Any:
    spacing = np.spacing(np.abs(want).astype(kind)).astype(np.float64)
    return np.abs(got.astype(np.float64) - want) <= (ulps + 1) * spacing + absolute


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_functions(backend: Any, kind: Any) -> None:
    values = arguments(kind)
    rows = evaluated(backend, [*FUNCTIONS, *BESSEL], values, kind)
    for row, (code, (oracle, of_double, of_float)) in zip(rows, FUNCTIONS.items(), strict=False):
        ulps = of_double if kind is np.float64 else of_float
        assert close(row, wanted(code, oracle, values), kind, ulps).all(), code
    for row, (code, (bessel, absolute)) in zip(rows[len(FUNCTIONS) :], BESSEL.items(), strict=True):
        expected = wanted("(y)", bessel, values)
        size = np.maximum(1, np.abs(expected))
        assert (np.abs(row - expected) <= absolute * size).all(), code


def at_most(ulps: Numbers, absolute: float = 0) -> Callable[[Numbers, Numbers], Numbers]:
    return lambda got, want: close(got, want, np.float32, ulps, absolute)


def near_one(ulps: float, exponent: float) -> Callable[[Numbers, Numbers], Numbers]:
    """Logarithms have an absolute error where their argument lies between 1/2 and 2."""
    return at_most(ulps, 2.0**exponent)


def fast(values: dict[str, Any]) -> dict[str, tuple[Numbers, Callable[..., Numbers]]]:
    """Return the oracle's results for the fast functions, and what the guide allows."""
    x, y, p = (values[name].astype(np.float64) for name in "xyp")
    grows = np.floor(np.abs(1.173 * x)), np.floor(np.abs(2.97 * x))
    powers = y**x
    return {
        "__expf(x)": (np.exp(x), at_most(2 + grows[0])),
        "__exp10f(x)": (10**x, at_most(2 + grows[1])),
        "__logf(y)": (np.log(y), near_one(3, -21.41)),
        "__log2f(y)": (np.log2(y), near_one(2, -22)),
        "__log10f(y)": (np.log10(y), near_one(3, -24)),
        "__sinf(3 * p)": (np.sin(3 * p), at_most(0, 2**-21.41)),
        "__cosf(3 * p)": (np.cos(3 * p), at_most(0, 2**-21.19)),
        "__tanf(p)": (np.tan(p), at_most(0, 2**-19)),
        "__tanhf(x)": (np.tanh(x), lambda got, want: np.abs(got / want - 1) < 2**-10.9),
        "__powf(y, x)": (powers, lambda got, want: np.abs(got / want - 1) < 2**-17),
        "__fdividef(x, y)": (x / y, at_most(2)),
        "__fdividef(x, 0x1p127f)": (0 * x, at_most(0)),
        "fdividef(x, y)": (x / y, at_most(2)),
        "__frsqrt_rn(y)": (1 / np.sqrt(y), at_most(0)),
        "rsqrtf(y)": (1 / np.sqrt(y), at_most(2)),
        "rcbrtf(y)": (1 / np.cbrt(y), at_most(1)),
        "__saturatef(x)": (np.clip(x, 0, 1), at_most(-1)),
        '__saturatef(nanf(""))': (0 * x, at_most(-1)),
        "sines(x).x": (np.sin(x), at_most(2, 2**-20)),
        "sines(x).y": (np.cos(x), at_most(2, 2**-20)),
        "normf(3, lengths(x, y))": (np.sqrt(x * x + y * y + 4), at_most(3)),
        "rnormf(3, lengths(x, y))": (1 / np.sqrt(x * x + y * y + 4), at_most(3)),
        "sinpif(x * 0 + 3)": (0 * x, at_most(-1)),
        "cospif(x * 0 + 2.5f)": (0 * x, at_most(-1)),
        "cospif(x * 0 + 3)": (0 * x - 1, at_most(-1)),
        "erfcinvf(0 * x)": (0 * x + np.inf, lambda got, want: got == want),
        "normcdfinvf(0 * x + 1)": (0 * x + np.inf, lambda got, want: got == want),
        "erfcxf(x * 0 + 1e20f)": (0 * x + 1e-20 / np.sqrt(np.pi), at_most(4)),
    }


SINES = """
__device__ float2 sines(float x) { float2 both; __sincosf(x, &both.x, &both.y); return both; }
__device__ float held[1024 * 3];
__device__ const float* lengths(float x, float y) {
    float* const own = held + threadIdx.x * 3;
    own[0] = x, own[1] = y, own[2] = 2;
    return own;
}
"""


def test_fast_functions(backend: Any) -> None:
    values = arguments(np.float32)
    values["x"] = np.clip(values["x"], -3, 3)
    expected = fast(values)
    rows = evaluated(backend, list(expected), values, np.float32, prelude=SINES)
    for row, (code, (want, is_close)) in zip(rows, expected.items(), strict=True):
        assert np.all(is_close(row, want)), (code, row, want)


@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_functions_of_half_numbers(backend: Any, name: str) -> None:
    dtype, form = (np.float16, HALF) if name == "half" else (ml_dtypes.bfloat16, BFLOAT16)
    random = np.random.default_rng(23)
    a = np.concatenate([[0.5, 1, 2, 3, 100], random.uniform(0.01, 9, COUNT - 5)]).astype(dtype)
    x = a.astype(np.float64)
    expected = {
        "sqrt": np.sqrt(x), "rsqrt": 1 / np.sqrt(x), "rcp": 1 / x, "log": np.log(x),
        "log2": np.log2(x), "log10": np.log10(x), "exp": np.exp(-x), "exp2": np.exp2(-x),
        "exp10": 10**-x, "sin": np.sin(x), "cos": np.cos(x), "tanh": np.tanh(x),
        "tanh_approx": np.tanh(x),
    }  # fmt: skip
    codes = {}
    for stem, want in expected.items():
        given = "-of(a)" if stem.startswith("exp") else "of(a)"
        codes[f"bits(h{stem}({given}))"] = want
        codes[f"bits(h2{stem}(pair({given})).y)"] = want
    kind = "__half" if name == "half" else "__nv_bfloat16"
    prelude = f"""
__device__ {kind} of(unsigned short bits) {{ return __ushort_as_{name}(bits); }}
__device__ unsigned short bits({kind} x) {{ return __{name}_as_ushort(x); }}
__device__ {kind}2 pair({kind} x) {{ {kind}2 made; made.x = of(0x3c00); made.y = x; return made; }}
"""
    rows = evaluated(backend, list(codes), {"a": a.view(np.uint16)}, np.uint16, prelude=prelude)
    for row, (code, want) in zip(rows, codes.items(), strict=True):
        nearest = np.array([form.rounded(Fraction(value)) for value in want])
        # Rounded to the nearest, but for the hyperbolic tangent and rare cases of the chip.
        limit = 2 if "approx" in code else 1
        assert (np.abs(row.astype(int) - nearest) <= limit).all(), code


MIN_AND_MAX = """
namespace library {
template <typename A, typename B> __device__ A min(A, B) { return 77; }
}
using namespace library;

extern "C" __global__ void k(double* out, const float* x, int i, unsigned u, long long l) {
    out[0] = min(x[0], x[1]), out[1] = min(x[1], x[0]), out[2] = max(x[1], x[0]);
    out[3] = min(i, 5), out[4] = max(i, u), out[5] = min(l, 5ll), out[6] = max(x[1], 2.5);
}
"""


def test_min_and_max_are_cudas_functions_and_return_the_number_next_to_a_nan(backend: Any) -> None:
    out = backend.array(np.full(7, -1.0))
    x = backend.array(np.array([np.nan, 2], np.float32))

    Kernel(MIN_AND_MAX, "k")(1, 1, (out, x, np.int32(-3), np.uint32(7), np.int64(-9)))

    assert backend.host(out).tolist() == [2, 2, 2, -3, 2.0**32 - 3, -9, 2.5]
