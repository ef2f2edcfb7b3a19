"""cvt of floats of 4 and 6 bits and of scales, against ml_dtypes, and with random bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from bodies import chosen

from tmaasync import Kernel

Words = npt.NDArray[np.uint32]
DTYPES: dict[str, Any] = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
}
LARGEST = {"e2m1": 6.0, "e2m3": 7.5, "e3m2": 28.0}  # OCP Microscaling Formats, tables 3 to 5
BITS = {"e2m1": 4, "e2m3": 8, "e3m2": 8}  # of one float in a register of two

TO = """
asm volatile("{ .reg .bWIDTH d; .reg .b16 h; CVT d, %1, %2; WIDEN }"
    : "=r"(out[t]) : "f"(floats[2 * t + 1]), "f"(floats[2 * t]));
"""
TO_OF_PAIRS = """
asm volatile("{ .reg .b16 d; CVT d, %1; cvt.u32.u16 %0, d; }" : "=r"(out[t]) : "r"(words[t]));
"""
FROM = """
asm volatile("{ .reg .bWIDTH d; .reg .b16 h; NARROW CVT %0, d; }" : "=r"(out[t]) : "r"(words[t]));
"""
KERNEL = """
extern "C" __global__ void k(const float* floats, const unsigned* words, unsigned* out, int what) {
    const int t = blockIdx.x * 32 + threadIdx.x;
BODIES
}
"""
# A register of 8 bits is read and written in a vector only.
WIDEN = {8: "mov.b32 %0, {d, d, d, d}; and.b32 %0, %0, 255;", 16: "cvt.u32.u16 %0, d;"}
NARROW = {8: "{ .reg .b8 x, y, z; mov.b32 {d, x, y, z}, %1; }", 16: "cvt.u16.u32 d, %1;"}


def body_of(opcode: str) -> str:
    """Return the statement of an instruction: one by `TO`, `TO_OF_PAIRS` or `FROM`."""
    parts = opcode.split(".")
    width = 8 if "e2m1x2" in parts else 16
    text = FROM if "x2" in parts[-1] else TO
    if parts[-1] == "bf16x2" and "ue8m0x2" in parts[-2]:
        text = TO_OF_PAIRS
    text = text.replace("WIDTH", str(width)).replace("WIDEN", WIDEN[width])
    return text.replace("NARROW", NARROW[width]).replace("CVT", opcode)


OPCODES = [
    *(f"cvt.rn.satfinite{relu}.{kind}x2.f32" for kind in DTYPES for relu in ("", ".relu")),
    *(f"cvt.rn{relu}.f16x2.{kind}x2" for kind in DTYPES for relu in ("", ".relu")),
    *(
        f"cvt.{mode}{satfinite}.ue8m0x2.{source}"
        for mode in ("rz", "rp")
        for satfinite in ("", ".satfinite")
        for source in ("f32", "bf16x2")
    ),
    "cvt.rn.bf16x2.ue8m0x2",
]
TEXT = KERNEL.replace("BODIES", chosen(map(body_of, OPCODES)))
NO_FLOATS, NO_WORDS = np.zeros(1, np.float32), np.zeros(1, np.uint32)


def run(opcode: str, given: npt.NDArray[Any], count: int) -> Words:
    out = np.zeros(count, np.uint32)
    arrays = (given, NO_WORDS) if given.dtype == np.float32 else (NO_FLOATS, given)
    kernel = Kernel(TEXT, "k", arch="sm_100a")
    kernel(count // 32, 32, (*arrays, out, OPCODES.index(opcode)))
    return out


def floats(kind: str) -> npt.NDArray[np.float32]:
    """Return every number of a type, those halfway between two, and special ones."""
    finite = np.arange(2 ** (sum(map(int, kind[1::2])) + 1)).astype(np.uint8).view(DTYPES[kind])
    numbers = np.unique(finite.astype(np.float32))
    halfway = (numbers[1:] + numbers[:-1]) / 2
    near = np.concatenate([np.nextafter(halfway, -np.inf), np.nextafter(halfway, np.inf)])
    special = np.array([-0.0, np.inf, -np.inf, 1e30, -1e30, 1e-40, 100, -100], np.float32)
    every = np.concatenate([numbers, halfway, near.astype(np.float32), special])
    return np.resize(every.astype(np.float32), -(-every.size // 64) * 64)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", DTYPES)
def test_floats_become_small_ones(kind: str, relu: str) -> None:
    values = floats(kind)
    limit = np.float32(LARGEST[kind])

    words = run(f"cvt.rn.satfinite{relu}.{kind}x2.f32", values, values.size // 2)

    kept = np.where(values > 0, values, np.float32(0)) if relu else values
    expected = np.clip(kept, -limit, limit).astype(DTYPES[kind]).view(np.uint8)
    found = np.stack([words, words >> BITS[kind]], -1).ravel() & (2 ** BITS[kind] - 1)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", DTYPES)
def test_no_number_becomes_the_largest_one(kind: str) -> None:
    values = np.full(64, np.nan, np.float32)
    largest = int(np.array(LARGEST[kind], DTYPES[kind]).view(np.uint8))

    words = run(f"cvt.rn.satfinite.{kind}x2.f32", values, 32)

    assert set(words.tolist()) == {largest | largest << BITS[kind]}


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", DTYPES)
def test_small_floats_become_halves(kind: str, relu: str) -> None:
    count = 2 ** (sum(map(int, kind[1::2])) + 1)
    one, other = np.meshgrid(np.arange(count), np.arange(count))
    pairs = np.resize((one | other << BITS[kind]).astype(np.uint32).ravel(), max(32, count**2))

    words = run(f"cvt.rn{relu}.f16x2.{kind}x2", pairs, pairs.size)

    parts = np.stack([pairs, pairs >> BITS[kind]], -1) & (2 ** BITS[kind] - 1)
    values = parts.astype(np.uint8).view(DTYPES[kind]).astype(np.float16)
    if relu:
        values = np.where(values > 0, values, np.float16(0))
    assert (words.view(np.uint16) == values.view(np.uint16).ravel()).all()


def scale_of(value: float, *, rounds_up: bool, saturates: bool) -> int:
    """Return the bits of the power of two next to the magnitude of a number."""
    if np.isnan(value):
        return 255
    size = abs(value)
    if not np.isinf(size):
        mantissa, exponent = np.frexp(size)  # from 1/2 up to 1
        power = int(exponent) - 1 + (rounds_up and mantissa > 0.5)
        if size < 2.0**-127 or power < -127:
            return 0
        if power <= 127:
            return power + 127
    return 254 if saturates else 255


SCALES = np.resize(
    np.concatenate(
        [
            np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 2.0**-127, 1.5 * 2.0**-127]),
            np.array([2.0**-126, 1, -3, 1.999, 2.0**127, 1.5 * 2.0**127, -(2.0**127)]),
            np.ldexp(np.random.default_rng(9).uniform(1, 2, 33), range(-120, 111, 7)),
        ]
    ).astype(np.float32),
    64,
)


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("mode", ["rz", "rp"])
@pytest.mark.parametrize("source", ["f32", "bf16x2"])
def test_numbers_become_scales(source: str, mode: str, satfinite: str) -> None:
    values = SCALES if source == "f32" else SCALES.astype(ml_dtypes.bfloat16)
    given = values if source == "f32" else values.view(np.uint32)

    words = run(f"cvt.{mode}{satfinite}.ue8m0x2.{source}", given, 32)

    rounds_up, saturates = mode == "rp", bool(satfinite)
    expected = [scale_of(float(one), rounds_up=rounds_up, saturates=saturates) for one in values]
    found = np.stack([words, words >> 8], -1).ravel() & 255
    assert found.tolist() == expected


def test_scales_become_bfloats() -> None:
    pairs = (np.arange(256) | np.arange(256)[::-1] << 8).astype(np.uint32)

    words = run("cvt.rn.bf16x2.ue8m0x2", pairs, 256)

    scales = np.stack([pairs, pairs >> 8], -1).ravel().astype(np.uint8)
    values = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32).astype(ml_dtypes.bfloat16)
    found, expected = words.view(np.uint16), values.view(np.uint16).copy()
    expected[scales == 255] = 0x7FFF
    assert found.tolist() == expected.tolist()


# --- stochastic rounding --------------------------------------------------------------------------

STOCHASTIC = """
extern "C" __global__ void k(const float* floats, const unsigned* bits, unsigned* out, int what) {
    const int t = blockIdx.x * 32 + threadIdx.x;
BODIES
}
"""
TYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    **DTYPES,
}
# Values of an instruction, random bits of each, distance of two results in the register.
SHAPES = {"f16": (2, 13, 16), "bf16": (2, 16, 16), "e2m1": (4, 8, 4)}
SATURATING = [f"cvt.rs{relu}.satfinite.{kind}" for relu in ("", ".relu") for kind in TYPES]
ROUNDED = [*SATURATING, "cvt.rs.f16", "cvt.rs.relu.bf16", "cvt.rs.satfinite.relu.e5m2"]


def shape_of(opcode: str) -> tuple[int, int, int]:
    return SHAPES.get(opcode.rpartition(".")[2], (4, 8, 8))


def stochastic_body(opcode: str) -> str:
    count, _, distance = shape_of(opcode)
    given = ", ".join(f"%{2 + i}" for i in range(count))
    values = ", ".join(f'"f"(floats[{count} * t + {i}])' for i in range(count))
    sources = given if count == 2 else f"{{{given}}}"
    convert = f"{opcode}x{count}.f32 d, {sources}, %1;"
    width = count * distance
    widen = "mov.b32 %0, d;" if width == 32 else "cvt.u32.u16 %0, d;"
    text = f"{{ .reg .b{width} d; {convert} {widen} }}"
    return f'asm volatile("{text}" : "=r"(out[t]) : "r"(bits[t]), {values});'


STOCHASTIC_TEXT = STOCHASTIC.replace("BODIES", chosen(map(stochastic_body, ROUNDED)))


def positive(kind: str) -> npt.NDArray[np.float64]:
    """Return the finite numbers from 0 on, ascending: their codes are 0, 1, ..."""
    dtype = np.dtype(TYPES[kind])
    bits = 16 if dtype.itemsize == 2 else 1 + sum(map(int, kind[1::2]))
    codes = np.arange(2 ** (bits - 1)).astype(f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        values = codes.view(dtype).astype(np.float64)
    finite: npt.NDArray[np.float64] = values[np.isfinite(values)]
    return finite


def rounded_stochastically(opcode: str, value: float, random: int) -> int:
    """Return the code of the neighbour that the random bits choose."""
    kind = opcode.rpartition(".")[2]
    numbers, (_, bits, _) = positive(kind), shape_of(opcode)
    sign: int = 1 << int(numbers.size - 1).bit_length() if np.signbit(value) else 0
    if ".relu" in opcode and not value > 0:
        return 0
    below = int(np.searchsorted(numbers, abs(value), side="right")) - 1
    if below == numbers.size - 1:
        # The next number would have the same distance as the last two.
        step = numbers[-1] - numbers[-2]
        is_over = abs(value) >= numbers[-1] + step
    else:
        step, is_over = numbers[below + 1] - numbers[below], False
    part = 0.0 if np.isinf(value) or is_over else (abs(value) - numbers[below]) / step
    code = below + bool(is_over or int(part * 2**bits) + random >= 2**bits)
    return sign | min(code, numbers.size - ("satfinite" in opcode))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("opcode", ROUNDED)
def test_random_bits_choose_a_neighbour(opcode: str) -> None:
    count, random_bits, distance = shape_of(opcode)
    rng = np.random.default_rng(59)
    numbers = positive(opcode.rpartition(".")[2])
    threads = 2048
    at = rng.integers(0, numbers.size - 1, (threads, count))
    part = rng.integers(0, 2**10, at.shape) / 2**10
    values = numbers[at] + part * (numbers[at + 1] - numbers[at])
    values *= rng.choice([-1, 1], at.shape)
    values[:2, :] = 1.25 * numbers[-1]
    values[2:4, :] = -np.inf
    with np.errstate(over="ignore"):
        floats_ = values.astype(np.float32)
    bits = rng.integers(0, 2**32, threads, np.uint64).astype(np.uint32)
    bits[4:200:2], bits[5:200:2] = 0, 2**32 - 1
    out = np.zeros(threads, np.uint32)

    kernel = Kernel(STOCHASTIC_TEXT, "k", arch="sm_100a")
    kernel(threads // 32, 32, (floats_, bits, out, ROUNDED.index(opcode)))

    field = 32 // count
    for thread, i in np.ndindex(threads, count):
        shift = (count - 1 - i) * field
        random = int(bits[thread]) >> shift & (2**random_bits - 1)
        expected = rounded_stochastically(opcode, float(floats_[thread, i]), random)
        found = int(out[thread]) >> (count - 1 - i) * distance & (2**distance - 1)
        assert found == expected, (thread, i, floats_[thread, i], random)


@pytest.mark.parametrize("kind", ["f16", "e2m1"])
def test_the_mean_of_stochastic_rounding_is_the_value(kind: str) -> None:
    """Every chance is the distance to the other neighbour, and NaN stays NaN or the largest."""
    opcode = f"cvt.rs.satfinite.{kind}"
    count, _, distance = shape_of(opcode)
    threads = 4096
    bits = np.random.default_rng(60).integers(0, 2**32, threads, np.uint64).astype(np.uint32)
    value = np.float32(positive(kind)[2:4] @ (0.75, 0.25))
    floats_, out = np.full((threads, count), value, np.float32), np.zeros(threads, np.uint32)
    floats_[0] = np.nan

    kernel = Kernel(STOCHASTIC_TEXT, "k", arch="sm_103a")
    kernel(threads // 32, 32, (floats_, bits, out, ROUNDED.index(opcode)))

    codes = out[1:, None] >> np.arange(count) * distance & (2**distance - 1)
    means = (codes == 3).mean(0)
    assert set(codes.ravel().tolist()) == {2, 3}
    assert (np.abs(means - 0.25) < 0.05).all()
    assert out[0] == (0x7FFF7FFF if kind == "f16" else 0x7777)
