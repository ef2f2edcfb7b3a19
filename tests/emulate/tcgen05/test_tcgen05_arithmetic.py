"""The emulator's tcgen05.mma, bit for bit against an oracle in Python's integers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulate.tcgen05 import tcgen05_oracle as oracle
from emulate.tcgen05.tcgen05_library import (
    CODE_BITS,
    TYPE_CODES,
    Codes,
    Instruction,
    Operands,
    Scales,
    code_dtype,
    multiply,
)

SMALL = tuple(TYPE_CODES["f8f6f4"])
PAIRS = [*zip(SMALL, SMALL, strict=True), *zip(SMALL, SMALL[2:] + SMALL[:2], strict=True)]
FLOATS = [
    *(
        Instruction(kind="f16", a=a, b=b, d=d)
        for a, b, d in (
            ("f16", "f16", "f32"),
            ("f16", "f16", "f16"),
            ("bf16", "bf16", "f32"),
            ("bf16", "bf16", "f16"),
            ("f16", "bf16", "f32"),
            ("bf16", "f16", "f32"),
        )
    ),
    Instruction(kind="tf32", a="tf32", b="tf32"),
    *(Instruction(kind="f8f6f4", a=a, b=b, d="f32") for a, b in PAIRS),
    Instruction(kind="f8f6f4", a="e4m3", b="e5m2", d="f16"),
    Instruction(kind="f8f6f4", a="e2m1", b="e4m3", d="f16"),
    *(Instruction(kind="mxf8f6f4", a=a, b=b, facts={"scale_vector": 1}) for a, b in PAIRS),
]
GROUPS = [
    Instruction(kind="mxf4", a="e2m1", b="e2m1", facts={"scale_vector": 2}),
    Instruction(kind="mxf4nvf4", a="e2m1", b="e2m1", facts={"scale_vector": 2}),
    Instruction(kind="mxf4nvf4", a="e2m1", b="e2m1", facts={"scale_vector": 4}),
    Instruction(
        kind="mxf4nvf4", a="e2m1", b="e2m1", scales=Scales.UE4M3, facts={"scale_vector": 4}
    ),
    Instruction(
        kind="mxf4", a="e2m1", b="e2m1", deep=True, facts={"scale_vector": 2, "is_sm_103": 1}
    ),
    Instruction(
        kind="mxf4nvf4",
        a="e2m1",
        b="e2m1",
        deep=True,
        scales=Scales.UE4M3,
        facts={"scale_vector": 4, "is_sm_103": 1},
    ),
]
INTEGERS = [
    Instruction(kind="i8", a=a, b=b, d="s32", saturates=saturates)
    for a, b, saturates in itertools.product(("u8", "s8"), ("u8", "s8"), (False, True))
]
DENSE = [*FLOATS, *GROUPS, *INTEGERS]


def sparse(instruction: Instruction) -> Instruction:
    return replace(instruction, facts={**instruction.facts, "is_sparse": 1})


SPARSE = [sparse(one) for one in DENSE if not one.deep]


def name_of(instruction: Instruction) -> str:
    words = [instruction.kind, instruction.a, instruction.b, instruction.d]
    words += [f"{name}{value}" for name, value in instruction.facts.items()]
    words += ["saturates"] * instruction.saturates
    words += [instruction.scales.name] * (instruction.kind == "mxf4nvf4")
    words += ["k96"] * instruction.deep
    return "-".join(words)


# --- operands -----------------------------------------------------------------------------------


Generator = np.random.Generator


def any_codes(rng: Generator, kind: str, shape: tuple[int, ...]) -> Codes:
    """Return any codes: every exponent, subnormal numbers, zeros, infinities and NaNs."""
    return rng.integers(0, 1 << CODE_BITS[kind], shape, dtype=np.uint64).astype(code_dtype(kind))


def finite_codes(rng: Generator, kind: str, shape: tuple[int, ...], spread: int) -> Codes:
    """Return finite codes whose exponents lie within ``spread`` of one another; some zeros."""
    codes = any_codes(rng, kind, shape).astype(np.uint64)
    exponent_bits, mantissa_bits, _ = oracle._FORMATS[kind]
    low = 13 if kind == "tf32" else 0
    top = (1 << exponent_bits) - 1
    middle = int(rng.integers(0, top))
    fields = np.clip(middle + rng.integers(-spread, spread + 1, shape), 0, top - 1)
    mask = np.uint64(top << (mantissa_bits + low))
    codes = codes & ~mask | fields.astype(np.uint64) << np.uint64(mantissa_bits + low)
    zeros = rng.random(shape) < 0.1
    codes[zeros] &= np.uint64(1 << (exponent_bits + mantissa_bits + low))
    return codes.astype(code_dtype(kind))


def indices_of(rng: Generator, instruction: Instruction, rows: int) -> Codes | None:
    if not instruction.is_sparse:
        return None
    # Two of four; of packed elements, two pairs of four; of tf32, one of two.
    if instruction.kind in ("mxf4", "mxf4nvf4"):
        order = np.sort(rng.random((rows, instruction.k // 8, 4)).argsort(-1)[..., :2], -1)
        base = np.arange(instruction.k // 8)[:, None] * 8 + order * 2
        return np.stack([base, base + 1], -1).reshape(rows, -1).astype(np.uint8)
    of, taken = (2, 1) if instruction.kind == "tf32" else (4, 2)
    order = np.sort(rng.random((rows, instruction.k // of, of)).argsort(-1)[..., :taken], -1)
    base = np.arange(instruction.k // of)[:, None] * of + order
    return base.reshape(rows, -1).astype(np.uint8)


def scales_of(
    rng: Generator, instruction: Instruction, rows: int, *, spread: int, nan: float = 0.0
) -> Codes | None:
    if not instruction.is_scaled:
        return None
    shape = (rows, instruction.scale_count)
    if instruction.scales == Scales.UE4M3:
        codes = np.clip(56 + rng.integers(-8 * spread, 8 * spread + 1, shape), 0, 126)
    else:
        codes = np.clip(127 + rng.integers(-spread, spread + 1, shape), 0, 254)
    codes[rng.random(shape) < nan] = 0x7F if instruction.scales == Scales.UE4M3 else 255
    return codes.astype(np.uint8)


def words_of(rng: Generator, instruction: Instruction, shape: tuple[int, ...], like: Any) -> Codes:
    """Return D's words: any, or floats near the terms' magnitude."""
    if instruction.d == "s32":
        edges = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32)
        any_word = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
        return np.where(rng.random(shape) < 0.5, rng.choice(edges, shape), any_word)
    if like is None:
        return any_codes(rng, "f16" if instruction.d == "f16" else "tf32", shape).astype(np.uint32)
    values = like * np.exp2(rng.integers(-30, 31, shape)) * rng.standard_normal(shape)
    values[rng.random(shape) < 0.2] = -0.0
    dtype = np.float16 if instruction.d == "f16" else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.nan_to_num(values.astype(dtype), posinf=1.0, neginf=-1.0)
    codes: Codes = found.view(np.uint16 if instruction.d == "f16" else np.uint32)
    return codes.astype(np.uint32)


def operands(seed: int, instruction: Instruction, style: str) -> Operands:
    rng = np.random.default_rng(seed)
    shapes = (instruction.m, instruction.stored_k), (instruction.n, instruction.k)
    spread = {"near": 1, "wide": 14, "far": 60}.get(style, 14)
    if style == "any" or instruction.kind == "i8":
        a, b = (
            any_codes(rng, kind, shape)
            for kind, shape in zip((instruction.a, instruction.b), shapes, strict=True)
        )
    else:
        a, b = (
            finite_codes(rng, kind, shape, spread)
            for kind, shape in zip((instruction.a, instruction.b), shapes, strict=True)
        )
    # Few infinities and NaNs, so that most elements are finite.
    if style == "any" and instruction.a in ("f16", "bf16", "tf32", "e5m2", "e4m3"):
        half = instruction.m // 2
        a[:half] = finite_codes(rng, instruction.a, a[:half].shape, 60)
    if style == "cancel":
        a[:, 1::2] = a[:, ::2]
        b[:, 1::2] = b[:, ::2] ^ code_dtype(instruction.b).type(1 << (CODE_BITS[instruction.b] - 1))
    scale_spread = {"near": 0, "wide": 4, "far": 126}.get(style, 20)
    nan = 0.02 if style == "any" else 0.0
    wanted = (instruction.m, instruction.n)
    magnitude = None if style == "any" else size_of_terms(instruction, a, b)
    return Operands(
        a=a,
        b=b,
        d=words_of(rng, instruction, wanted, magnitude),
        a_scales=scales_of(rng, instruction, instruction.m, spread=scale_spread, nan=nan),
        b_scales=scales_of(rng, instruction, instruction.n, spread=scale_spread, nan=nan),
        indices=indices_of(rng, instruction, instruction.m),
    )


def size_of_terms(instruction: Instruction, a: Codes, b: Codes) -> float:
    def size(kind: str, codes: Codes) -> float:
        numbers = [oracle.decode(kind, int(code)) for code in codes.ravel()[:64]]
        values = [abs(float(one.value)) for one in numbers if isinstance(one, oracle.Number)]
        return max(values, default=1.0) or 1.0

    if instruction.kind == "i8":
        return 1.0
    return float(np.clip(size(instruction.a, a) * size(instruction.b, b), 1e-30, 1e30))


def expected(instruction: Instruction, these: Operands, row: int, column: int) -> int:
    def codes(array: npt.NDArray[Any] | None, at: int) -> list[int]:
        return [] if array is None else array[at].tolist()

    return oracle.element(
        instruction,
        codes(these.a, row),
        codes(these.b, column),
        int(these.d[row, column]) if these.accumulates else 0,
        a_scales=codes(these.a_scales, row),
        b_scales=codes(these.b_scales, column),
        indices=None if these.indices is None else codes(these.indices, row),
        scale_input_d=these.scale_input_d,
    )


def check(instruction: Instruction, these: Operands, seed: int, samples: int = 30) -> None:
    found = multiply(instruction, these)
    rng = np.random.default_rng(seed)
    for _ in range(samples):
        row, column = int(rng.integers(instruction.m)), int(rng.integers(instruction.n))
        wanted = expected(instruction, these, row, column)
        assert f"{found[row, column]:#x}" == f"{wanted:#x}", (row, column)


# --- tests --------------------------------------------------------------------------------------


STYLES = ("near", "wide", "far", "any", "cancel")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("instruction", DENSE, ids=name_of)
def test_dense(instruction: Instruction) -> None:
    for seed, style in enumerate(STYLES):
        check(instruction, operands(seed, instruction, style), seed)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("instruction", SPARSE, ids=name_of)
def test_sparse(instruction: Instruction) -> None:
    for seed, style in enumerate(STYLES[1:4]):
        check(instruction, operands(seed, instruction, style), seed, samples=20)


@pytest.mark.parametrize("instruction", [*FLOATS, *map(sparse, FLOATS)], ids=name_of)
def test_vectors_are_equal_to_single_elements(instruction: Instruction) -> None:
    for seed, style in enumerate(STYLES):
        these = operands(seed, instruction, style)
        np.testing.assert_array_equal(
            multiply(instruction, these), multiply(instruction, these, slowly=True), style
        )


NEGATED = [FLOATS[0], FLOATS[6], FLOATS[-1], GROUPS[0], GROUPS[3]]


@pytest.mark.parametrize("negates", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("instruction", NEGATED, ids=name_of)
def test_negated_operands(instruction: Instruction, negates: tuple[bool, bool]) -> None:
    negated = replace(instruction, negates=negates)
    check(negated, operands(5, negated, "any"), 5)


@pytest.mark.parametrize("instruction", [FLOATS[0], FLOATS[1], FLOATS[2], FLOATS[6]], ids=name_of)
@pytest.mark.parametrize("shift", [1, 7, 15])
def test_scale_input_d(instruction: Instruction, shift: int) -> None:
    for style in ("wide", "any"):
        these = replace(operands(shift, instruction, style), scale_input_d=shift)
        check(instruction, these, shift)


@pytest.mark.parametrize("instruction", DENSE, ids=name_of)
def test_old_words_do_not_count_without_input_d(instruction: Instruction) -> None:
    these = replace(operands(3, instruction, "any"), accumulates=False)
    check(instruction, these, 3)


@pytest.mark.parametrize("n", [8, 24, 40, 256])
def test_columns_beyond_whole_vectors(n: int) -> None:
    for instruction in (FLOATS[2], FLOATS[-1], GROUPS[3], INTEGERS[0]):
        wide = replace(instruction, n=n)
        check(wide, operands(n, wide, "wide"), n)


def test_zero_terms() -> None:
    """All terms are zero: unscaled, -0 becomes +0; with scale factors D stays as it is."""
    for instruction in (FLOATS[2], FLOATS[-1], GROUPS[0], GROUPS[3]):
        these = operands(1, instruction, "near")
        these.a[:] = 0
        these.d[:] = 0x80000000
        these.d[:, 1] = 0x40490FDB
        these.d[:, 2] = 0x80000001
        found = multiply(instruction, these)
        zero = 0x80000000 if instruction.is_scaled else 0
        assert np.unique(found[:, 0]).tolist() == [zero]
        assert np.unique(found[:, 1]).tolist() == [0x40490FDB]
        assert np.unique(found[:, 2]).tolist() == [0x80000001]
