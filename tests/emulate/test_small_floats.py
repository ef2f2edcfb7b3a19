"""cvt of floats of 4 and 6 bits and of scales, against ml_dtypes, and compiled by nvcc."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import CompileError, Kernel

Words = npt.NDArray[np.uint32]
BLACKWELL = ("sm_100a", "sm_103a", "sm_120a")
DTYPES: dict[str, Any] = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
}
LARGEST = {"e2m1": 6.0, "e2m3": 7.5, "e3m2": 28.0}  # OCP Microscaling Formats, tables 3 to 5
BITS = {"e2m1": 4, "e2m3": 8, "e3m2": 8}  # of one float in a register of two

TO = """
extern "C" __global__ void NAME(const float* in, unsigned* out) {
    const int t = blockIdx.x * 32 + threadIdx.x;
    asm volatile("{ .reg .bWIDTH d; .reg .b16 h; CVT d, %1, %2; WIDEN }"
        : "=r"(out[t]) : "f"(in[2 * t + 1]), "f"(in[2 * t]));
}
"""
FROM = """
extern "C" __global__ void NAME(const unsigned* in, unsigned* out) {
    const int t = blockIdx.x * 32 + threadIdx.x;
    asm volatile("{ .reg .bWIDTH d; .reg .b16 h; NARROW CVT %0, d; }"
        : "=r"(out[t]) : "r"(in[t]));
}
"""
# A register of 8 bits is read and written in a vector only.
WIDEN = {
    8: "mov.b32 %0, {d, d, d, d}; and.b32 %0, %0, 255;",
    16: "cvt.u32.u16 %0, d;",
}
NARROW = {
    8: "{ .reg .b8 x, y, z; mov.b32 {d, x, y, z}, %1; }",
    16: "cvt.u16.u32 d, %1;",
}


def to_text(kind: str, opcode: str, name: str = "k") -> str:
    width = 8 if kind == "e2m1" else 16
    text = TO.replace("WIDTH", str(width)).replace("WIDEN", WIDEN[width])
    return text.replace("CVT", opcode).replace("NAME", name)


def from_text(kind: str, opcode: str, name: str = "k") -> str:
    width = 8 if kind == "e2m1" else 16
    text = FROM.replace("WIDTH", str(width)).replace("NARROW", NARROW[width])
    return text.replace("CVT", opcode).replace("NAME", name)


def run(text: str, given: npt.NDArray[Any], count: int, arch: str = "sm_100a") -> Words:
    out = np.zeros(count, np.uint32)
    Kernel(text, "k", arch=arch)(count // 32, 32, (given, out))
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

    words = run(to_text(kind, f"cvt.rn.satfinite{relu}.{kind}x2.f32"), values, values.size // 2)

    kept = np.where(values > 0, values, np.float32(0)) if relu else values
    expected = np.clip(kept, -limit, limit).astype(DTYPES[kind]).view(np.uint8)
    found = np.stack([words, words >> BITS[kind]], -1).ravel() & (2 ** BITS[kind] - 1)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", DTYPES)
def test_no_number_becomes_the_largest_one(kind: str) -> None:
    values = np.full(64, np.nan, np.float32)
    largest = int(np.array(LARGEST[kind], DTYPES[kind]).view(np.uint8))

    words = run(to_text(kind, f"cvt.rn.satfinite.{kind}x2.f32"), values, 32)

    assert set(words.tolist()) == {largest | largest << BITS[kind]}


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", DTYPES)
def test_small_floats_become_halves(kind: str, relu: str) -> None:
    count = 2 ** (sum(map(int, kind[1::2])) + 1)
    one, other = np.meshgrid(np.arange(count), np.arange(count))
    pairs = np.resize((one | other << BITS[kind]).astype(np.uint32).ravel(), max(32, count**2))

    words = run(from_text(kind, f"cvt.rn{relu}.f16x2.{kind}x2"), pairs, pairs.size)

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
    opcode = f"cvt.{mode}{satfinite}.ue8m0x2.{source}"
    if source == "f32":
        values = SCALES
        words = run(to_text("ue8m0", opcode), values, 32)
    else:
        values = SCALES.astype(ml_dtypes.bfloat16)
        text = TO.replace("const float*", "const unsigned*").replace("%1, %2", "%1")
        text = text.replace(': "f"(in[2 * t + 1]), "f"(in[2 * t])', ': "r"(in[t])')
        text = text.replace("WIDTH", "16").replace("WIDEN", WIDEN[16])
        text = text.replace("CVT", opcode).replace("NAME", "k")
        words = run(text, values.view(np.uint32), 32)

    rounds_up, saturates = mode == "rp", bool(satfinite)
    expected = [scale_of(float(one), rounds_up=rounds_up, saturates=saturates) for one in values]
    found = np.stack([words, words >> 8], -1).ravel() & 255
    assert found.tolist() == expected


def test_scales_become_bfloats() -> None:
    pairs = (np.arange(256) | np.arange(256)[::-1] << 8).astype(np.uint32)

    words = run(from_text("ue8m0", "cvt.rn.bf16x2.ue8m0x2"), pairs, 256)

    scales = np.stack([pairs, pairs >> 8], -1).ravel().astype(np.uint8)
    values = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32).astype(ml_dtypes.bfloat16)
    found, expected = words.view(np.uint16), values.view(np.uint16).copy()
    expected[scales == 255] = 0x7FFF
    assert found.tolist() == expected.tolist()


def test_hopper_lacks_them() -> None:
    with pytest.raises(
        CompileError, match=r"is of sm_100a.* for sm_90a\. Use the functions of <cuda"
    ):
        run(to_text("e2m1", "cvt.rn.satfinite.e2m1x2.f32"), np.zeros(64, np.float32), 32, "sm_90a")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", BLACKWELL)
def test_nvcc_compiles_the_same_sources(arch: str, tmp_path: Path) -> None:
    texts = [
        text
        for number, kind in enumerate(DTYPES)
        for text in (
            to_text(kind, f"cvt.rn.satfinite.relu.{kind}x2.f32", f"to{number}"),
            from_text(kind, f"cvt.rn.relu.f16x2.{kind}x2", f"from{number}"),
        )
    ]
    texts += [
        to_text("ue8m0", "cvt.rp.satfinite.ue8m0x2.f32", "to_scales"),
        from_text("ue8m0", "cvt.rn.bf16x2.ue8m0x2", "from_scales"),
    ]
    source = tmp_path / "all.cu"
    source.write_text("".join(texts))

    command = ["nvcc", f"-arch={arch}", "-cubin", str(source), "-o", str(tmp_path / "all.cubin")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert ran.returncode == 0, ran.stderr
