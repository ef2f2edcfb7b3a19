"""Half precision and bfloat16: arithmetic, comparisons and conversions bit for bit."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from parity.exact_numbers import BFLOAT16, HALF, Format
from parity.expressions import evaluated

COUNT = 192


@dataclass(frozen=True)
class Kind:
    """How CUDA names one of the two types."""

    type: str
    pair: str
    short: str  # in the names of conversions
    form: Format

    @property
    def prelude(self) -> str:
        return f"""
typedef {self.type} T;
typedef {self.pair} Pair;
__device__ T of(unsigned short bits) {{ return __ushort_as_{self.short}(bits); }}
__device__ unsigned bits(T x) {{ return __{self.short}_as_ushort(x); }}
__device__ unsigned bits(Pair x) {{ return bits(x.x) | bits(x.y) << 16; }}
__device__ Pair pair(unsigned short low, unsigned short high) {{ Pair made; made.x = of(low);
    made.y = of(high); return made; }}
#define A of(a)
#define B of(b)
#define C of(c)
#define AA pair(a, next_a)
#define BB pair(b, next_b)
#define CC pair(c, next_c)
"""


KINDS = {
    "half": Kind("__half", "__half2", "half", HALF),
    "bfloat16": Kind("__nv_bfloat16", "__nv_bfloat162", "bfloat16", BFLOAT16),
}


def operands(form: Format) -> tuple[Any, Any, Any]:
    """Return bits of finite numbers, all edges with each other among them."""
    random = np.random.default_rng(13)
    one = form.bias << form.digits - 1
    sign = 1 << 15
    edges = [one, one + 1, one | sign, 1, 1 | sign, form.infinity - 1, 1 << form.digits - 1, sign]
    pairs = [*itertools.product(edges, edges)]
    others = random.integers(0, 2**15, (2, COUNT - len(pairs)))
    others = others % form.infinity | random.integers(0, 2, others.shape) << 15
    # Halves of them close to one another, so that sums cancel and scaled meet addends.
    others[1, ::2] = others[0, ::2] ^ random.integers(0, 8, others[0, ::2].shape)
    others[1, ::2] = np.where(others[1, ::2] % sign >= form.infinity, one, others[1, ::2])
    a, b = np.concatenate([np.array(pairs).T, others], axis=1).astype(np.uint16)
    c = random.permutation(a)
    c[: COUNT // 2] = form.infinity - 1 - random.integers(0, form.infinity - 1, COUNT // 2)
    return a, b, c


def is_negative(bits: int) -> bool:
    return bool(bits >> 15)


def rounded_sum(form: Format, x: Fraction, y: Fraction, signs: tuple[bool, bool]) -> int:
    return form.rounded(x + y, zero_sign=int(all(signs)))


def arithmetic(kind: Kind, a: Any, b: Any, c: Any) -> dict[str, list[int]]:
    """Return bits of what the functions of one element make of a, b and c."""
    form = kind.form
    x, y, z = (form.values(each) for each in (a, b, c))
    signs = [
        (is_negative(u), is_negative(v), is_negative(w)) for u, v, w in zip(a, b, c, strict=True)
    ]
    every = list(zip(x, y, z, signs, strict=True))

    def sign_of_scaled(sign: tuple[bool, bool, bool]) -> bool:
        return sign[0] != sign[1]

    def clamp(value: Fraction) -> int:
        return form.rounded(min(max(value, Fraction(0)), Fraction(1)))

    sums = [rounded_sum(form, u, v, (s[0], s[1])) for u, v, _, s in every]
    differences = [rounded_sum(form, u, -v, (s[0], not s[1])) for u, v, _, s in every]
    scaled = [form.rounded(u * v, zero_sign=sign_of_scaled(s)) for u, v, _, s in every]
    fused = [rounded_sum(form, u * v, w, (sign_of_scaled(s), s[2])) for u, v, w, s in every]
    return {
        "__hadd(A, B)": sums,
        "__hadd_rn(A, B)": sums,
        "A + B": sums,
        "__hsub(A, B)": differences,
        "__hsub_rn(A, B)": differences,
        "A - B": differences,
        "__hmul(A, B)": scaled,
        "__hmul_rn(A, B)": scaled,
        "A * B": scaled,
        "__hfma(A, B, C)": fused,
        "__hadd_sat(A, B)": [clamp(u + v) for u, v, *_ in every],
        "__hsub_sat(A, B)": [clamp(u - v) for u, v, *_ in every],
        "__hmul_sat(A, B)": [clamp(u * v) for u, v, *_ in every],
        "__hfma_sat(A, B, C)": [clamp(u * v + w) for u, v, w, _ in every],
        "__hfma_relu(A, B, C)": [
            0 if u * v + w <= 0 else bits for (u, v, w, _), bits in zip(every, fused, strict=True)
        ],
        "__hneg(A)": [int(bits) ^ 0x8000 for bits in a],
        "__habs(A)": [int(bits) & 0x7FFF for bits in a],
        "__hmax(A, B)": [_larger(p, q, form) for p, q in zip(a, b, strict=True)],
        "__hmin(A, B)": [
            _larger(p ^ 0x8000, q ^ 0x8000, form) ^ 0x8000 for p, q in zip(a, b, strict=True)
        ],
        "__hmax_nan(A, B)": [_larger(p, q, form) for p, q in zip(a, b, strict=True)],
        **{
            f"h{name}(A)": [form.rounded(Fraction(change(u)), zero_sign=s[0] or u < 0)
                            for u, _, _, s in every]
            for name, change in (
                ("trunc", math.trunc), ("ceil", math.ceil), ("floor", math.floor), ("rint", round),
            )
        },
    }  # fmt: skip


def _larger(p: Any, q: Any, form: Format) -> int:
    """Return the larger of two numbers, where -0 is below +0."""
    numbers = (int(p), int(q))
    return max(numbers, key=lambda bits: (form.value(bits) or 0, not is_negative(bits)))


COMPARISONS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "le": lambda x, y: x <= y,
    "ge": lambda x, y: x >= y,
    "lt": lambda x, y: x < y,
    "gt": lambda x, y: x > y,
}


def with_next(row: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Pair each element with the next, as the kernels' pairs hold them."""
    return zip(row, [*row[1:], row[0]], strict=True)


def in_pairs(code: str) -> str:
    """Return the call of the function of pairs: __hadd2_sat(AA, BB) for __hadd_sat(A, B)."""
    name, _, rest = code.partition("(")
    word = re.match(r"(?:__)?h", name)[0]  # type: ignore[index]
    stem, mark, suffix = name.removeprefix(word).partition("_")
    name = f"{word}{stem}2{mark}{suffix}" if word == "__h" else f"h2{stem}"
    return f"{name}({re.sub('[ABC]', lambda operand: operand[0] * 2, rest)}"


def arrays_of(a: Any, b: Any, c: Any) -> dict[str, Any]:
    arrays = {"a": a, "b": b, "c": c}
    return arrays | {f"next_{name}": np.roll(values, -1) for name, values in arrays.items()}


@pytest.mark.parametrize("name", KINDS)
def test_arithmetic(backend: Any, name: str) -> None:
    kind = KINDS[name]
    a, b, c = operands(kind.form)
    elements = arithmetic(kind, a, b, c)
    expected = {f"bits({code})": row for code, row in elements.items()}
    for code, row in elements.items():
        if "(" in code:
            paired = in_pairs(code)
            expected[f"bits({paired})"] = [low | high << 16 for low, high in with_next(row)]
    x, y = kind.form.values(a), kind.form.values(b)
    for test, compare in COMPARISONS.items():
        truths = [int(compare(u, v)) for u, v in zip(x, y, strict=True)]
        both = list(with_next(truths))
        expected |= {
            f"__h{test}(A, B)": truths,
            f"__h{test}u(A, B)": truths,
            f"__hb{test}2(AA, BB)": [int(all(each)) for each in both],
            f"__hb{test}u2(AA, BB)": [int(all(each)) for each in both],
            f"__h{test}2_mask(AA, BB)": [p * 0xFFFF | q * 0xFFFF0000 for p, q in both],
        }
    rows = evaluated(backend, list(expected), arrays_of(a, b, c), np.uint32, prelude=kind.prelude)

    for row, (code, values) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == values, code
