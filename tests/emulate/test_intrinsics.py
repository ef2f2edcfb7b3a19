"""CUDA's intrinsic functions against NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel

RNG = np.random.default_rng(7)
INTS = np.concatenate(
    [[0, 1, 2**31, 2**32 - 1, 0x80808080, 31, 32, 33], RNG.integers(0, 2**32, 56)]
).astype(np.uint32)
OTHERS = np.concatenate([[0, 2**32 - 1, 1, 5, 40], RNG.integers(0, 2**32, 59)]).astype(np.uint32)
FLOATS = np.concatenate(
    [[0, 1, -1, 0.5, 1.5, -2.5, 3e9, -3e9, 1e20, -1e20, np.nan, np.inf], RNG.normal(0, 1e4, 52)]
).astype(np.float32)
A, B = INTS.astype(np.uint64), OTHERS.astype(np.uint64)
SA, SB = INTS.view(np.int32).astype(np.int64), OTHERS.view(np.int32).astype(np.int64)
BOTH = B << np.uint64(32) | A
SHIFT = np.uint64(5)


def words(values: Any) -> Any:
    """Return the low 32 bits."""
    return np.array([int(value) & 0xFFFFFFFF for value in values], np.uint32)


def bits(word: int) -> str:
    return format(int(word), "032b")


def parts(word: int, kind: type[np.generic]) -> Any:
    return np.array([word], np.uint32).view(kind).astype(np.int64)


def together(values: list[Any], kind: type[np.generic]) -> Any:
    return np.array([value.astype(kind).view(np.uint32)[0] for value in values], np.uint32)


def by_parts(change: Any, kind: type[np.generic]) -> Any:
    pairs = zip(INTS, OTHERS, strict=True)
    return together([np.asarray(change(parts(x, kind), parts(y, kind))) for x, y in pairs], kind)


OF_INTEGERS = {
    "__popc(a)": [bits(x).count("1") for x in INTS],
    "__popcll(both)": [int(x).bit_count() for x in BOTH],
    "__clz(a)": [32 - int(x).bit_length() for x in INTS],
    "__clzll(both)": [64 - int(x).bit_length() for x in BOTH],
    "__ffs(a)": [(int(x) & -int(x)).bit_length() for x in INTS],
    "__ffsll(both)": [(int(x) & -int(x)).bit_length() for x in BOTH],
    "__brev(a)": [int(bits(x)[::-1], 2) for x in INTS],
    "__brevll(both) >> 32": [int(bits(x)[::-1], 2) for x in INTS],
    "__funnelshift_l(a, b, b)": [
        (int(x) << (int(y) & 31)) >> 32 for x, y in zip(BOTH, B, strict=True)
    ],
    "__funnelshift_r(a, b, b)": [int(x) >> (int(y) & 31) for x, y in zip(BOTH, B, strict=True)],
    "__funnelshift_lc(a, b, a)": [
        (int(x) << min(int(y), 32)) >> 32 for x, y in zip(BOTH, A, strict=True)
    ],
    "__funnelshift_rc(a, b, a)": [int(x) >> min(int(y), 32) for x, y in zip(BOTH, A, strict=True)],
    "__umulhi(a, b)": A * B >> np.uint64(32),
    "__mulhi(a, b)": SA * SB >> 32,
    "__umul64hi(both, both) >> 32": [int(x) * int(x) >> 96 for x in BOTH],
    "__mul64hi(-1, both)": [(-x >> 64 if (x := int(y)) < 2**63 else 2**64 - x >> 64) for y in BOTH],
    "__umul24(a, b)": (A & np.uint64(0xFFFFFF)) * (B & np.uint64(0xFFFFFF)),
    "__mul24(a, b)": ((SA << 40) >> 40) * ((SB << 40) >> 40),
    "__usad(a, b, 7u)": np.where(A > B, A - B, B - A) + np.uint64(7),
    "__sad(a, b, 7u)": abs(SA - SB) + 7,
    "__hadd(int(a), int(b))": (SA + SB) >> 1,
    "__rhadd(a, b)": (SA + SB + 1) >> 1,
    "__uhadd(a, b)": (A + B) >> np.uint64(1),
    "__urhadd(a, b)": (A + B + np.uint64(1)) >> np.uint64(1),
    "__dp4a(a, b, 9u)": [
        9 + (parts(x, np.uint8) * parts(y, np.uint8)).sum()
        for x, y in zip(INTS, OTHERS, strict=True)
    ],
    "__dp4a(int(a), int(b), -9)": [
        (parts(x, np.int8) * parts(y, np.int8)).sum() - 9 for x, y in zip(INTS, OTHERS, strict=True)
    ],
    "__dp2a_hi(int(a), int(b), 1)": [
        1 + (parts(x, np.int16) * parts(y, np.int8)[2:]).sum()
        for x, y in zip(INTS, OTHERS, strict=True)
    ],
    "__dp2a_lo(a, b, 1u)": [
        1 + (parts(x, np.uint16) * parts(y, np.uint8)[:2]).sum()
        for x, y in zip(INTS, OTHERS, strict=True)
    ],
    "__vadd4(a, b)": by_parts(np.add, np.uint8),
    "__vsub2(a, b)": by_parts(np.subtract, np.uint16),
    "__vmaxs4(a, b)": by_parts(np.maximum, np.int8),
    "__vminu2(a, b)": by_parts(np.minimum, np.uint16),
    "__vabsdiffu4(a, b)": by_parts(lambda x, y: abs(x - y), np.uint8),
    "__vavgu4(a, b)": by_parts(lambda x, y: (x + y + 1) >> 1, np.uint8),
    "__vcmpeq4(a, b)": by_parts(lambda x, y: -(x == y).astype(int), np.uint8),
    "__vcmpgts2(a, b)": by_parts(lambda x, y: -(x > y).astype(int), np.int16),
    "__ldg(&in[i]) + __ldcg(&in[i]) + __ldcs(&in[i]) + __ldcv(&in[i])": 4 * A,
    "__isShared(&kept[i]) + 2 * __isGlobal(&in[i]) + 4 * __isShared(&in[i])": [3] * 64,
    "__CUDA_ARCH__": [900] * 64,
    "clock64() >= began ? 1 : 0": [1] * 64,
    "(__stcg(&kept[i], a), __stcs(&kept[i], a + 1), __ldca(&kept[i]))": A + np.uint64(1),
    "size_t(&aligned[0]) % 128 + alignof(Aligned)": [32] * 64,
}
KERNEL = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct alignas(float4) alignas(32) Aligned { float x; };
extern "C" __global__ void all(const Element* in, const Element* other, Result* out) {
    __shared__ alignas(128) Element aligned[33];
    __shared__ Element kept[64];
    const long long began = clock64();
    const unsigned i = threadIdx.x;
    const Element a = in[i], b = other[i];
    const unsigned long long both = (unsigned long long)b << 32 | (unsigned long long)a;
    if (i == 0) kept[i] = aligned[i] = both + began;
BODY
}
"""


def run(element: str, result: type[np.generic], codes: Any, a: Any, b: Any) -> Any:
    body = "\n".join(f"out[{64 * row} + i] = {code};" for row, code in enumerate(codes))
    types = f"using Element = {element};\nusing Result = {CUDA_TYPES[result]};\n"
    out = np.zeros((len(codes), 64), result)
    Kernel(types + KERNEL.replace("BODY", body), "all")(1, 64, (a, b, out))
    return out


CUDA_TYPES = {
    np.uint32: "unsigned",
    np.int64: "long long",
    np.float32: "float",
    np.float64: "double",
}


def test_integers() -> None:
    codes = {f"static_cast<unsigned>({code})": row for code, row in OF_INTEGERS.items()}
    out = run("unsigned", np.uint32, codes, INTS, OTHERS)

    for row, (code, expected) in zip(out, codes.items(), strict=True):
        assert (row == words(expected)).all(), code


ROUND = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}


def saturated(
    values: Any, kind: type[np.signedinteger[Any]] | type[np.unsignedinteger[Any]]
) -> Any:
    """Return what cvt makes of whole numbers: PTX ISA, cvt."""
    limits = np.iinfo(kind)
    nan = 0 if limits.bits == 32 else 1 << 63
    exact = [nan if np.isnan(x) else None if np.isinf(x) else int(x) for x in values]
    ends = {True: limits.max, False: limits.min}
    clipped = [
        ends[bool(x > 0)]
        if whole is None
        else whole
        if np.isnan(x)
        else min(max(whole, limits.min), limits.max)
        for x, whole in zip(values, exact, strict=True)
    ]
    return np.array([x - (1 << 64) if x >= 1 << 63 else x for x in clipped], np.int64)


def test_floats_become_integers() -> None:
    kinds: dict[str, Any] = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}
    with np.errstate(invalid="ignore"):
        expected = {
            f"(long long)__float2{name}_{mode}(a)": saturated(change(FLOATS), kind)
            for name, kind in kinds.items()
            for mode, change in ROUND.items()
        }
    out = run("float", np.int64, expected, FLOATS, np.abs(FLOATS[::-1]))

    for row, (code, wanted) in zip(out, expected.items(), strict=True):
        assert (row == wanted).all(), code


def rounded(exact: list[Fraction], kind: Any, mode: str) -> Any:
    """Return the number of that type on the side of the exact one that the mode asks for."""
    nearest = np.array([kind(float(x)) if kind is np.float64 else to_float32(x) for x in exact])
    result = nearest.copy()
    for at, x in enumerate(exact):
        is_above = Fraction(float(nearest[at])) > x
        is_below = Fraction(float(nearest[at])) < x
        down = mode == "rd" or (mode == "rz" and x > 0)
        up = mode == "ru" or (mode == "rz" and x < 0)
        if is_above and down:
            result[at] = np.nextafter(nearest[at], kind(-np.inf))
        if is_below and up:
            result[at] = np.nextafter(nearest[at], kind(np.inf))
    return result


def to_float32(x: Fraction) -> Any:
    """Return the nearest float32; double rounding is avoided by rounding to odd first."""
    wide = np.float64(float(x))
    if Fraction(float(wide)) != x and wide.view(np.int64) % 2 == 0:
        wide = np.nextafter(wide, np.inf if x > Fraction(float(wide)) else -np.inf)
    return np.float32(wide)


EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}


@pytest.mark.parametrize("element", ["float", "double"])
def test_arithmetic_rounds_in_each_mode(element: str) -> None:
    kind: Any = np.float32 if element == "float" else np.float64
    prefix = "f" if element == "float" else "d"
    a, b = (np.asarray(RNG.normal(0, 100, 64), kind) for _ in range(2))
    x, y = ([Fraction(float(value)) for value in values] for values in (a, b))
    expected = {
        f"__{prefix}{name}_{mode}(a, b)": rounded(list(map(exact, x, y)), kind, mode)
        for name, exact in EXACT.items()
        for mode in ROUND
    }
    fused = "__fmaf" if element == "float" else "__fma"
    for mode in ROUND:
        exact_sums = [u * v + u for u, v in zip(x, y, strict=True)]
        expected[f"{fused}_{mode}(a, b, a)"] = rounded(exact_sums, kind, mode)
        expected[f"__{prefix}rcp_{mode}(a)"] = rounded([1 / u for u in x], kind, mode)
    expected[f"__{prefix}sqrt_rn(a * a)"] = np.sqrt(a * a)
    out = run(element, kind, expected, a, b)

    for row, (code, wanted) in zip(out, expected.items(), strict=True):
        assert (row == wanted).all(), code


def test_fast_mathematics() -> None:
    x, y = RNG.uniform(0.1, 4, (2, 64)).astype(np.float32)
    wide = x.astype(np.float64)
    expected = {
        "__expf(a)": np.exp(wide),
        "__exp10f(a)": 10**wide,
        "__logf(a)": np.log(wide),
        "__log2f(a)": np.log2(wide),
        "__log10f(a)": np.log10(wide),
        "__sinf(a)": np.sin(wide),
        "__cosf(a)": np.cos(wide),
        "__tanf(a)": np.tan(wide),
        "__powf(a, b)": wide**y,
        "__fdividef(a, b)": wide / y,
        "__saturatef(a - 1)": np.clip(wide - 1, 0, 1),
        "rsqrtf(a)": wide**-0.5,
        "__frsqrt_rn(a)": wide**-0.5,
        "rcbrtf(a)": np.cbrt(wide) ** -1,
        "__int2float_rn(int(a * 1000))": np.trunc(x * np.float32(1000)),
        "__uint2float_rz(0x1ffffffu)": np.full(64, 0x1FFFFFE),
        "__ll2float_ru(0x1ffffffll)": np.full(64, 0x2000000),
        "__double2float_rd(1.0 / 3)": np.full(64, np.nextafter(np.float32(1 / 3), np.float32(0))),
        "__longlong_as_double(__double_as_longlong(a))": wide,
        "__hiloint2double(__double2hiint(a), __double2loint(a))": wide,
    }
    out = run("float", np.float32, expected, x, y)

    for row, (code, wanted) in zip(out, expected.items(), strict=True):
        assert np.allclose(row, wanted, rtol=1e-6, atol=1e-7), code


TOGETHER = """
extern "C" __global__ void together(const int* in, int* out, unsigned* atomics) {
    const int i = threadIdx.x, value = in[i];
    const unsigned half = i % 32 < 16 ? 0x0000ffff : 0xffff0000;
    int is_same;
    out[0 * 64 + i] = __match_any_sync(0xffffffff, value);
    out[1 * 64 + i] = __match_any_sync(half, (long long)value << 40);
    out[2 * 64 + i] = __match_all_sync(0xffffffff, value / 100, &is_same);
    out[3 * 64 + i] = is_same;
    out[4 * 64 + i] = __match_all_sync(0xffffffff, value, &is_same);
    out[5 * 64 + i] = __reduce_add_sync(half, value);
    out[6 * 64 + i] = __reduce_min_sync(0xffffffff, value - 3);
    out[7 * 64 + i] = __reduce_max_sync(0xffffffff, unsigned(value - 3));
    out[8 * 64 + i] = __reduce_or_sync(0xffffffff, unsigned(value));
    out[9 * 64 + i] = __reduce_xor_sync(0xffffffff, unsigned(value));
    out[10 * 64 + i] = __reduce_and_sync(0xffffffff, unsigned(value));
    for (int round = 0; round < 5; ++round) {
        out[11 * 64 + i] = __syncthreads_count(value > round);
    }
    out[12 * 64 + i] = __syncthreads_and(value >= 0) + 2 * __syncthreads_and(value > 0);
    out[13 * 64 + i] = __syncthreads_or(value < 0) + 2 * __syncthreads_or(value > 7);
    atomicAdd_block(atomics, 2u);
    atomicMax_system(atomics + 1, unsigned(value));
    atomicCAS_block(atomics + 2, 0u, 9u);
    atomicAdd(reinterpret_cast<float4*>(atomics + 4), make_float4(1, 2, 3, 4));
}
"""


def test_threads_together() -> None:
    values = RNG.integers(0, 9, 64).astype(np.int32)
    values[0] = 0
    out, atomics = np.zeros((14, 64), np.int32), np.zeros(8, np.uint32)
    Kernel(TOGETHER, "together")(1, 64, (values, out, atomics))

    warps = values.reshape(2, 32)
    equal = warps[:, :, None] == warps[:, None, :]
    lanes = np.uint32(1) << np.arange(32, dtype=np.uint32)
    halves = np.arange(32)[:, None] // 16 == np.arange(32)[None, :] // 16
    rows = {
        0: (equal * lanes).sum(2),
        1: ((equal & halves) * lanes).sum(2),
        2: np.full(64, -1),
        3: np.ones(64),
        4: np.zeros(64),
        5: values.reshape(4, 16).sum(1).repeat(16),
        6: (warps.min(1) - 3).repeat(32),
        7: (warps - 3).view(np.uint32).max(1).repeat(32),
        8: np.bitwise_or.reduce(warps, 1).repeat(32),
        9: np.bitwise_xor.reduce(warps, 1).repeat(32),
        10: np.bitwise_and.reduce(warps, 1).repeat(32),
        11: np.full(64, (values > 4).sum()),
        12: np.ones(64),
        13: np.full(64, 2 * (values > 7).any()),
    }
    for row, wanted in rows.items():
        assert (out[row].view(np.uint32) == words(wanted.ravel().astype(np.int64))).all(), row
    assert atomics[:3].tolist() == [128, values.max(), 9]
    assert atomics[4:].view(np.float32).tolist() == [64, 128, 192, 256]


ENDS = """
extern "C" __global__ void ends(int* x, int which) {
    if (which == 0) __brkpt();
    __builtin_assume(x[0] == 1);
    x[0] = 2;
}
"""


@pytest.mark.parametrize(
    ("which", "reason"),
    [(0, r"called __brkpt\(\)"), (1, r"__builtin_assume\(x\[0\] == 1\) does not hold")],
)
def test_what_ends_a_kernel(which: int, reason: str) -> None:
    with pytest.raises(EmulatedFault, match=f"{reason}"):
        Kernel(ENDS, "ends")(1, 1, (np.zeros(1, np.int32), which))
