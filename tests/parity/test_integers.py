"""CUDA's functions of integers, and of the parts of a word, against Python's own integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from parity.expressions import evaluated

RNG = np.random.default_rng(7)
COUNT = 64
EDGES = [0, 1, 2**31, 2**32 - 1, 0x80808080, 31, 32, 33, 0x7F80FF01, 0x80007FFF, 0x8000FFFF]
A = np.concatenate([EDGES, RNG.integers(0, 2**32, COUNT - len(EDGES))]).astype(np.uint32)
B = np.concatenate([[0, 2**32 - 1, 1, 5, 40], RNG.integers(0, 2**32, COUNT - 5)]).astype(np.uint32)
B[8:11] = [0x807F01FF, 0x7FFF8000, 0x80008000]
C = RNG.permutation(A)
BOTH = [y << 32 | x for x, y in zip(A.tolist(), B.tolist(), strict=True)]


def signed(word: int, bits: int = 32) -> int:
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word


def of_pairs(change: Callable[[int, int], int]) -> list[int]:
    return [change(x, y) for x, y in zip(A.tolist(), B.tolist(), strict=True)]


def of_signed(change: Callable[[int, int], int]) -> list[int]:
    return of_pairs(lambda x, y: change(signed(x), signed(y)))


def of_both(change: Callable[[int], int]) -> list[int]:
    return [change(word) for word in BOTH]


def byte(word: int, index: int) -> int:
    return word >> 8 * index & 0xFF


def permuted(x: int, y: int) -> int:
    both = y << 32 | x
    return sum(byte(both, y >> 4 * i & 7) << 8 * i for i in range(4))


def dot(x: int, y: int, bits: int, count: int, take: Callable[[int, int], int], first: int) -> int:
    return sum(take(x >> bits * i, bits) * take(y >> 8 * (first + i), 8) for i in range(count))


def unsigned(word: int, bits: int) -> int:
    return word & ((1 << bits) - 1)


def nth_set(word: int, base: int, nth: int) -> int:
    if nth == 0:
        return base if word >> base & 1 else 2**32 - 1
    places = range(base, 32) if nth > 0 else range(base, -1, -1)
    found = [place for place in places if word >> place & 1]
    return found[abs(nth) - 1] if len(found) >= abs(nth) else 2**32 - 1


INTEGERS = {
    "__popc(a)": of_pairs(lambda x, _: x.bit_count()),
    "__popcll(both)": of_both(int.bit_count),
    "__clz(a)": of_pairs(lambda x, _: 32 - x.bit_length()),
    "__clzll(both)": of_both(lambda x: 64 - x.bit_length()),
    "__ffs(a)": of_pairs(lambda x, _: (x & -x).bit_length()),
    "__ffsll(both)": of_both(lambda x: (x & -x).bit_length()),
    "__brev(a)": of_pairs(lambda x, _: int(f"{x:032b}"[::-1], 2)),
    "__brevll(both) >> 20": of_both(lambda x: int(f"{x:064b}"[::-1], 2) >> 20),
    "__fns(a, b & 31, 0)": of_pairs(lambda x, y: nth_set(x, y & 31, 0)),
    "__fns(a, b & 31, 2)": of_pairs(lambda x, y: nth_set(x, y & 31, 2)),
    "__fns(a, b & 31, -3)": of_pairs(lambda x, y: nth_set(x, y & 31, -3)),
    "__byte_perm(a, b, b)": of_pairs(permuted),
    "__funnelshift_l(a, b, b)": of_pairs(lambda x, y: (y << 32 | x) << (y & 31) >> 32),
    "__funnelshift_r(a, b, b)": of_pairs(lambda x, y: (y << 32 | x) >> (y & 31)),
    "__funnelshift_lc(a, b, a)": of_pairs(lambda x, y: (y << 32 | x) << min(x, 32) >> 32),
    "__funnelshift_rc(a, b, a)": of_pairs(lambda x, y: (y << 32 | x) >> min(x, 32)),
    "__umulhi(a, b)": of_pairs(lambda x, y: x * y >> 32),
    "__mulhi(a, b)": of_signed(lambda x, y: x * y >> 32),
    "__umul64hi(both, both) >> 32": of_both(lambda x: x * x >> 96),
    "__mul64hi(-1, both)": of_both(lambda x: -signed(x, 64) >> 64),
    "__umul24(a, b)": of_pairs(lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF)),
    "__mul24(a, b)": of_pairs(lambda x, y: signed(x, 24) * signed(y, 24)),
    "__usad(a, b, 7u)": of_pairs(lambda x, y: abs(x - y) + 7),
    "__sad(a, b, 7u)": of_signed(lambda x, y: abs(x - y) + 7),
    "__hadd(int(a), int(b))": of_signed(lambda x, y: (x + y) >> 1),
    "__rhadd(a, b)": of_signed(lambda x, y: (x + y + 1) >> 1),
    "__uhadd(a, b)": of_pairs(lambda x, y: (x + y) >> 1),
    "__urhadd(a, b)": of_pairs(lambda x, y: (x + y + 1) >> 1),
    "__dp4a(a, b, 9u)": of_pairs(lambda x, y: 9 + dot(x, y, 8, 4, unsigned, 0)),
    "__dp4a(int(a), int(b), -9)": of_pairs(lambda x, y: dot(x, y, 8, 4, signed, 0) - 9),
    "__dp4a(chars(a), chars(b), 1)": of_pairs(lambda x, y: 1 + dot(x, y, 8, 4, signed, 0)),
    "__dp2a_lo(a, b, 1u)": of_pairs(lambda x, y: 1 + dot(x, y, 16, 2, unsigned, 0)),
    "__dp2a_hi(a, b, 1u)": of_pairs(lambda x, y: 1 + dot(x, y, 16, 2, unsigned, 2)),
    "__dp2a_lo(int(a), int(b), 1)": of_pairs(lambda x, y: 1 + dot(x, y, 16, 2, signed, 0)),
    "__dp2a_hi(int(a), int(b), 1)": of_pairs(lambda x, y: 1 + dot(x, y, 16, 2, signed, 2)),
    "umin(a, b)": of_pairs(min),
    "umax(a, b)": of_pairs(max),
    "min(int(a), int(b))": of_signed(min),
    "max(int(a), int(b))": of_signed(max),
    "llmin(both, -5) >> 3": of_both(lambda x: min(signed(x, 64), -5) >> 3),
    "ullmax(both, 1ull << 60) >> 32": of_both(lambda x: max(x, 1 << 60) >> 32),
}

Parts = Callable[..., int]


def by_parts(change: Parts, bits: int, is_signed: bool, *words: list[int]) -> list[int]:
    """Apply a function to the parts of words; results keep the part's bits."""
    take = signed if is_signed else unsigned
    return [
        sum(
            unsigned(change(*(take(word >> shift, bits) for word in each)), bits) << shift
            for shift in range(0, 32, bits)
        )
        for each in zip(*words, strict=True)
    ]


def clipped(change: Parts, bits: int, is_signed: bool) -> Parts:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    return lambda *parts: min(max(change(*parts), low), high)


def absolute(x: int) -> int:
    return abs(x)


def rounded_away(x: int, y: int) -> int:
    return (x + y + (x + y >= 0)) >> 1


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "ges": lambda x, y: x >= y,
    "gts": lambda x, y: x > y,
    "les": lambda x, y: x <= y,
    "lts": lambda x, y: x < y,
}


def distance(take: Parts, bits: int) -> Callable[[int, int], int]:
    return lambda x, y: sum(
        abs(take(x >> shift, bits) - take(y >> shift, bits)) for shift in range(0, 32, bits)
    )


def simd(parts: int) -> dict[str, list[int]]:
    """Return what the functions of 2 halves or 4 bytes make of a and b."""
    bits, a, b = 32 // parts, A.tolist(), B.tolist()
    ones: dict[str, Parts] = {"abs": absolute, "neg": lambda x: -x}
    found = {
        f"__v{name}{suffix}{parts}(a)": by_parts(
            clipped(change, bits, True) if suffix else change, bits, True, a
        )
        for name, change in ones.items()
        for suffix in ("", "ss")
    }
    twos: dict[str, tuple[Parts, bool]] = {
        "add": (lambda x, y: x + y, False),
        "addss": (clipped(lambda x, y: x + y, bits, True), True),
        "addus": (clipped(lambda x, y: x + y, bits, False), False),
        "sub": (lambda x, y: x - y, False),
        "subss": (clipped(lambda x, y: x - y, bits, True), True),
        "subus": (clipped(lambda x, y: x - y, bits, False), False),
        "haddu": (lambda x, y: (x + y) >> 1, False),
        "avgu": (lambda x, y: (x + y + 1) >> 1, False),
        "avgs": (rounded_away, True),
        "absdiffu": (lambda x, y: abs(x - y), False),
        "absdiffs": (lambda x, y: abs(x - y), True),
        "maxs": (max, True),
        "maxu": (max, False),
        "mins": (min, True),
        "minu": (min, False),
    }
    for name, (change, is_signed) in twos.items():
        found[f"__v{name}{parts}(a, b)"] = by_parts(change, bits, is_signed, a, b)
    for name, test in COMPARISONS.items():
        is_equality = name in ("eq", "ne")
        for is_signed in (True, False):
            suffix = name if is_equality or is_signed else name.removesuffix("s") + "u"
            for kind, true in (("cmp", -1), ("set", 1)):
                found[f"__v{kind}{suffix}{parts}(a, b)"] = by_parts(
                    lambda x, y, test=test, true=true: true if test(x, y) else 0,
                    bits, is_signed, a, b,
                )  # fmt: skip
    for is_signed in (True, False):
        take = signed if is_signed else unsigned
        found[f"__vsad{'s' if is_signed else 'u'}{parts}(a, b)"] = of_pairs(distance(take, bits))
    return found


def picks_first(pick: Parts, take: Parts, bits: int, shift: int) -> Callable[[int, int], int]:
    def is_first(x: int, y: int) -> int:
        first = take(x >> shift, bits)
        return pick(first, take(y >> shift, bits)) == first

    return is_first


def picks() -> dict[str, list[int]]:
    """Return what sm_90's instructions for the smaller and the larger make of a, b and c."""
    a, b, c = A.tolist(), B.tolist(), C.tolist()
    found: dict[str, list[int]] = {}
    kinds = {"s32": (32, True), "u32": (32, False), "s16x2": (16, True), "u16x2": (16, False)}
    for suffix, (bits, is_signed) in kinds.items():
        take = signed if is_signed else unsigned
        for pick in (max, min):
            for relu in ("", "_relu") if is_signed else ("",):
                least = 0 if relu else -(2**40)
                name = f"{pick.__name__}"
                found[f"__vi{name}3_{suffix}{relu}(a, b, c)"] = by_parts(
                    lambda x, y, z, pick=pick, least=least: max(pick(x, y, z), least),
                    bits, is_signed, a, b, c,
                )  # fmt: skip
                found[f"__viadd{name}_{suffix}{relu}(a, b, c)"] = by_parts(
                    lambda x, y, z, pick=pick, least=least, take=take, bits=bits: max(
                        pick(take(x + y, bits), z), least
                    ),
                    bits, is_signed, a, b, c,
                )  # fmt: skip
                if relu:
                    found[f"__vi{name}_{suffix}_relu(a, b)"] = by_parts(
                        lambda x, y, pick=pick: max(pick(x, y), 0), bits, is_signed, a, b
                    )
            flags = "&p" if bits == 32 else "&p, &q"
            call = f"__vib{name}_{suffix}(a, b, {flags})"
            found[f"[&] {{ bool p, q; return {call}; }}()"] = by_parts(pick, bits, is_signed, a, b)
            for flag, shift in (("p", 32 - bits), ("q", 0))[: 32 // bits]:
                found[f"[&] {{ bool p, q; {call}; return {flag}; }}()"] = of_pairs(
                    picks_first(pick, take, bits, shift)
                )
    return found


PRELUDE = """
__device__ char4 chars(unsigned word) {
    return make_char4(word, word >> 8, word >> 16, word >> 24);
}
#define both (static_cast<unsigned long long>(b) << 32 | a)
"""


def check(backend: Any, expected: dict[str, list[int]], prelude: str) -> None:
    rows = evaluated(backend, list(expected), {"a": A, "b": B, "c": C}, np.uint32, prelude=prelude)
    for row, (code, values) in zip(rows, expected.items(), strict=True):
        assert row.tolist() == [int(value) & 0xFFFFFFFF for value in values], code


def test_integers(backend: Any) -> None:
    check(backend, INTEGERS, PRELUDE)


def test_parts_of_words(backend: Any) -> None:
    check(backend, {**simd(2), **simd(4), **picks()}, PRELUDE)
