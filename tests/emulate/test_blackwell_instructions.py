"""The simplest instructions that came with Blackwell, against NumPy, and compiled by nvcc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arrays_in_memory
import numpy as np
import numpy.typing as npt
import pytest
from bodies import chosen

from tmaasync import CompileError, EmulatedFault, Kernel

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

BLACKWELL = ("sm_100a", "sm_103a", "sm_120a")
DATA_CENTER = ("sm_100a", "sm_103a")
THREADS = 32
NAN, INFINITY, SUBNORMAL = np.float32(np.nan), np.float32(np.inf), np.float32(1e-40)


def inputs() -> Floats:
    """Return three values per thread, which begin with special ones."""
    values = np.random.default_rng(51).normal(0, 4, (3, THREADS)).astype(np.float32)
    values[0, :8] = (NAN, NAN, 0.0, -0.0, INFINITY, SUBNORMAL, -SUBNORMAL, 1.0)
    values[1, :8] = (NAN, 2.0, -0.0, 0.0, -INFINITY, SUBNORMAL, SUBNORMAL, NAN)
    values[2, :8] = (NAN, NAN, 0.0, -0.0, 1.0, -0.0, 1.0, 2.0)
    return values


def bits(values: Floats) -> Words:
    """Return the bits, where every NaN is the one that the chip returns."""
    words = values.astype(np.float32).view(np.uint32).copy()
    words[np.isnan(values)] = 0x7FFFFFFF
    return words


def flushed(values: Floats) -> Floats:
    is_small = np.abs(values) < np.float32(2.0**-126)
    return np.where(is_small, np.copysign(np.float32(0), values), values)


def rounded_down(exact: npt.NDArray[np.float64]) -> Floats:
    """Round doubles that are exact towards minus infinity."""
    with np.errstate(over="ignore"):
        near = exact.astype(np.float32)
    return np.where(near > exact, np.nextafter(near, -INFINITY), near)


def lesser(*values: Floats, is_max: bool, keeps_nan: bool = False) -> Floats:
    """Return the least values, or the greatest; -0 is less than 0, and NaN is no number."""

    def of(numbers: tuple[np.float32, ...]) -> np.float32:
        kept = [one for one in numbers if not np.isnan(one)]
        if not kept or (keeps_nan and len(kept) < len(numbers)):
            return NAN
        choose = max if is_max else min
        return choose(kept, key=lambda one: (float(one), not np.signbit(one)))

    return np.array([of(numbers) for numbers in zip(*values, strict=True)], np.float32)


# --- one instruction on floats --------------------------------------------------------------------

ONE = """
extern "C" __global__ void one(const float* in, float* out, int what) {
    const int t = threadIdx.x;
    float a = in[t], b = in[32 + t], c = in[64 + t], d = 0;
BODIES
    out[t] = d;
}
"""


def everywhere(values: Floats) -> Floats:
    """Give every lane the result of a reduction."""
    return np.repeat(values, THREADS)


def reduced(values: Floats, *, is_max: bool, keeps_nan: bool) -> Floats:
    one = lesser(*values[:, None], is_max=is_max, keeps_nan=keeps_nan)
    return everywhere(one)


SINGLES: dict[str, tuple[tuple[str, ...], Callable[[Floats, Floats, Floats], Floats]]] = {
    "min.f32 %0, %1, %2, %3;": (BLACKWELL, lambda a, b, c: lesser(a, b, c, is_max=False)),
    "max.f32 %0, %1, %2, %3;": (BLACKWELL, lambda a, b, c: lesser(a, b, c, is_max=True)),
    "max.NaN.f32 %0, %1, %2, %3;": (
        BLACKWELL,
        lambda a, b, c: lesser(a, b, c, is_max=True, keeps_nan=True),
    ),
    "min.ftz.abs.f32 %0, %1, %2, %3;": (
        BLACKWELL,
        lambda a, b, c: lesser(*(flushed(np.abs(one)) for one in (a, b, c)), is_max=False),
    ),
    "max.ftz.NaN.abs.f32 %0, %1, %2, %3;": (
        BLACKWELL,
        lambda a, b, c: lesser(
            *(flushed(np.abs(one)) for one in (a, b, c)), is_max=True, keeps_nan=True
        ),
    ),
    "redux.sync.min.f32 %0, %1, -1;": (
        DATA_CENTER,
        lambda a, b, c: reduced(a, is_max=False, keeps_nan=False),
    ),
    "redux.sync.max.abs.f32 %0, %2, -1;": (
        DATA_CENTER,
        lambda a, b, c: reduced(np.abs(b), is_max=True, keeps_nan=False),
    ),
    "redux.sync.max.NaN.f32 %0, %3, -1;": (
        DATA_CENTER,
        lambda a, b, c: reduced(c, is_max=True, keeps_nan=True),
    ),
    "redux.sync.min.abs.NaN.f32 %0, %1, -1;": (
        DATA_CENTER,
        lambda a, b, c: reduced(np.abs(a), is_max=False, keeps_nan=True),
    ),
}


def singles_of(arch: str) -> str:
    """Return the kernel of all instructions that a chip has."""
    return ONE.replace(
        "BODIES",
        chosen(
            f'asm volatile("{one}" : "=f"(d) : "f"(a), "f"(b), "f"(c));'
            for one, (archs, _) in SINGLES.items()
            if arch in archs
        ),
    )


@pytest.mark.parametrize("instruction", SINGLES)
def test_one_instruction_on_floats(instruction: str) -> None:
    values, out = inputs(), np.zeros(THREADS, np.float32)

    kernel = Kernel(singles_of("sm_103a"), "one", arch="sm_103a")
    kernel(1, THREADS, (values, out, [*SINGLES].index(instruction)))

    assert bits(out).tolist() == bits(SINGLES[instruction][1](*values)).tolist()


def test_a_reduction_of_floats_is_of_the_lanes_of_its_mask() -> None:
    text = """
    extern "C" __global__ void halves(const float* in, float* out) {
        const int t = threadIdx.x;
        const unsigned mask = t < 16 ? 0xffffu : 0xffff0000u;
        asm volatile("redux.sync.min.f32 %0, %1, %2;" : "=f"(out[t]) : "f"(in[t]), "r"(mask));
    }
    """
    values = np.random.default_rng(5).normal(0, 1, THREADS).astype(np.float32)
    values[:16] = NAN
    out = np.zeros(THREADS, np.float32)

    Kernel(text, "halves", arch="sm_103a")(1, THREADS, (values, out))

    assert (out.view(np.uint32)[:16] == 0x7FFFFFFF).all()
    assert (out[16:] == values[16:].min()).all()


# --- a half and floats ----------------------------------------------------------------------------

MIXED = """
extern "C" __global__ void mixed(
    const unsigned short* halves, const float* in, float* out, int what
) {
    const int t = threadIdx.x;
BODIES
}
"""
SUMS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "add.f32.TYPE %0, %1, %3;": lambda a, b, c: a + c,
    "sub.rn.f32.TYPE %0, %1, %3;": lambda a, b, c: a - c,
    "add.rm.f32.TYPE %0, %1, %3;": lambda a, b, c: rounded_down(exactly(np.add, a, c)),
    "add.sat.f32.TYPE %0, %1, %3;": lambda a, b, c: np.clip(a + c, 0, 1),
    "fma.rn.f32.TYPE %0, %1, %2, %3;": lambda a, b, c: exactly(
        lambda x, y, z: x * y + z, a, b, c
    ).astype(np.float32),
}


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("instruction", SUMS)
def test_a_half_and_floats(instruction: str, kind: str) -> None:
    rng = np.random.default_rng(53)
    words = (rng.integers(-128, 128, (2, THREADS)) / 32).astype(np.float32)
    halves = words.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        halves = (words.view(np.uint32) >> 16).astype(np.uint16)
    values, out = rng.normal(0, 4, THREADS).astype(np.float32), np.zeros(THREADS, np.float32)

    every = [one.replace("TYPE", type_) for one in SUMS for type_ in ("f16", "bf16")]
    bodies = chosen(
        f'asm volatile("{one}" : "=f"(out[t]) : "h"(halves[t]), "h"(halves[32 + t]), "f"(in[t]));'
        for one in every
    )
    kernel = Kernel(MIXED.replace("BODIES", bodies), "mixed", arch="sm_100a")
    number = every.index(instruction.replace("TYPE", kind))
    kernel(1, THREADS, (halves, values, out, number))

    assert (out == SUMS[instruction](words[0], words[1], values)).all()


FOUR_BITS = """
extern "C" __global__ void narrow(const unsigned* in, unsigned short* out) {
    asm volatile(
        "{\\n.reg .b8 r;\\ncvt.rn.satfinite.e2m1x2.f16x2 r, %1;\\nmov.b16 %0, {r, 0};\\n}"
        : "=h"(out[threadIdx.x]) : "r"(in[threadIdx.x])
    );
}
"""


def test_halves_become_floats_of_four_bits() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(54).normal(0, 2, 2 * THREADS).astype(np.float16)
    values[:4] = (6, -100, 0.25, -0.75)
    out = np.zeros(THREADS, np.uint16)
    Kernel(FOUR_BITS, "narrow", arch="sm_120a")(1, THREADS, (values.view(np.uint32), out))
    codes = np.clip(values, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert (out == codes[::2] | codes[1::2] << 4).all()


# --- pairs of floats ------------------------------------------------------------------------------

PAIR = """
extern "C" __global__ void pair(
    const unsigned long long* in, unsigned long long* out, int what
) {
    const int t = threadIdx.x;
BODIES
}
"""


def exactly(compute: Callable[..., Any], *values: Floats) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        result: npt.NDArray[np.float64] = compute(*(one.astype(np.float64) for one in values))
    return result


def of_pairs() -> dict[str, Callable[[Floats, Floats, Floats], Floats]]:
    # A double holds the sum of these numbers, and every result of two factors, exactly.
    return {
        "add.f32x2 %0, %1, %2;": lambda a, b, c: a + b,
        "sub.rn.f32x2 %0, %1, %2;": lambda a, b, c: a - b,
        "mul.rn.ftz.f32x2 %0, %1, %2;": lambda a, b, c: flushed(flushed(a) * flushed(b)),
        "add.rn.ftz.f32x2 %0, %1, %2;": lambda a, b, c: flushed(flushed(a) + flushed(b)),
        "mul.rm.f32x2 %0, %1, %2;": lambda a, b, c: rounded_down(exactly(np.multiply, a, b)),
        "fma.rn.f32x2 %0, %1, %2, %3;": lambda a, b, c: exactly(
            lambda x, y, z: x * y + z, a, b, c
        ).astype(np.float32),
    }


PAIRS = PAIR.replace(
    "BODIES",
    chosen(
        f'asm volatile("{one}" : "=l"(out[t]) : "l"(in[t]), "l"(in[32 + t]), "l"(in[64 + t]));'
        for one in of_pairs()
    ),
)


@pytest.mark.parametrize("instruction", of_pairs())
def test_an_instruction_on_pairs_is_two_on_floats(instruction: str) -> None:
    rng = np.random.default_rng(52)
    # 12 bits each, so that a double holds the result of an fma exactly.
    values = (rng.integers(-2048, 2048, (3, THREADS, 2)) / 64).astype(np.float32)
    values[0, :3] = np.array([NAN, 1.0, SUBNORMAL, -SUBNORMAL, INFINITY, 0.5]).reshape(3, 2)
    values[1, :3] = np.array([1.0, NAN, 0.5, 1.0, -INFINITY, 1.0]).reshape(3, 2)
    if ".rm" not in instruction and "fma" not in instruction:
        values[:, 4:] = rng.normal(0, 4, (3, THREADS - 4, 2)).astype(np.float32)
    out = np.zeros((THREADS, 2), np.float32)
    number = [*of_pairs()].index(instruction)

    arguments = (values.view(np.uint64), out.view(np.uint64), number)
    Kernel(PAIRS, "pair", arch="sm_100a")(1, THREADS, arguments)

    with np.errstate(invalid="ignore"):
        expected = of_pairs()[instruction](*values)
    assert bits(out).tolist() == bits(expected).tolist()


# --- 256 bits -------------------------------------------------------------------------------------

WIDE = """
extern "C" __global__ void wide(const unsigned* in, unsigned* out, int shift, int what) {
    const unsigned* a = in + 8 * threadIdx.x + shift;
    unsigned* b = out + 8 * threadIdx.x;
    unsigned r0, r1, r2, r3, r4, r5, r6, r7;
    unsigned long long l0, l1, l2, l3;
BODIES
}
"""
FORMS = {
    "v8": """
    asm volatile("LOAD.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3), "=r"(r4), "=r"(r5), "=r"(r6), "=r"(r7)
        : "l"(a));
    asm volatile("STORE.v8.u32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};"
        :: "l"(b), "r"(r7), "r"(r6), "r"(r5), "r"(r4), "r"(r3), "r"(r2), "r"(r1), "r"(r0));
""",
    "v4": """
    asm volatile("LOAD.v4.b64 {%0, %1, %2, %3}, [%4];"
        : "=l"(l0), "=l"(l1), "=l"(l2), "=l"(l3) : "l"(a));
    asm volatile("STORE.v4.u64 [%0], {%1, %2, %3, %4};"
        :: "l"(b), "l"(l3), "l"(l2), "l"(l1), "l"(l0));
""",
}
SPELLINGS = (
    ("ld.global", "st.global"),
    ("ld", "st"),
    ("ld.global.nc.L1::no_allocate", "st.relaxed.gpu.global"),
    ("ld.volatile.global", "st.volatile.global"),
)


def aligned(words: Words) -> Words:
    """Copy an array to an address that is a multiple of 32 bytes."""
    room: Words = arrays_in_memory.aligned(words.size, np.uint32)
    room[:] = words.ravel()
    return room


WIDES = WIDE.replace(
    "BODIES",
    chosen(
        form.replace("LOAD", load).replace("STORE", store)
        for form in FORMS.values()
        for load, store in SPELLINGS
    ),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelling", range(len(SPELLINGS)))
def test_256_bits_are_loaded_and_stored_at_once(form: str, spelling: int) -> None:
    words = np.random.default_rng(6).integers(0, 2**32, 8 * THREADS, np.uint64).astype(np.uint32)
    source, out = aligned(words), aligned(np.zeros_like(words))
    number = [*FORMS].index(form) * len(SPELLINGS) + spelling

    Kernel(WIDES, "wide", arch="sm_120a")(1, THREADS, (source, out, np.int32(0), number))

    last, first = (one.view(np.uint64) if form == "v4" else one for one in (out, words))
    count = len(first) // THREADS
    assert (last.reshape(-1, count) == first.reshape(-1, count)[:, ::-1]).all()
    with pytest.raises(EmulatedFault, match="whose address is no multiple of its size"):
        Kernel(WIDES, "wide", arch="sm_120a")(1, 2, (source, out, np.int32(4), number))


@pytest.mark.parametrize("form", FORMS)
def test_shared_memory_has_vectors_of_128_bits(form: str) -> None:
    body = FORMS[form].replace("LOAD", "ld.shared").replace("STORE", "st.global")
    kernel = Kernel(WIDE.replace("BODIES", body), "wide", arch="sm_100a")

    with pytest.raises(CompileError, match="has a form that the CPU does not have"):
        kernel(1, 1, (np.zeros(8, np.uint32), np.zeros(8, np.uint32), np.int32(0), 0))


# --- the spelling ---------------------------------------------------------------------------------
