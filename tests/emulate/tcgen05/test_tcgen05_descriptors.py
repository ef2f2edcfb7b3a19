"""Descriptors and layouts of tcgen05: against formulas of their own, and what is refused."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulate.tcgen05.tcgen05_library import (
    CODE_BITS,
    SUMS,
    TYPES,
    Codes,
    Form,
    Instruction,
    Scales,
    code_dtype,
    form,
    library,
    refusal_of,
)

FIELDS = (
    *("a", "b", "d", "m", "n", "k", "negates_a", "negates_b", "transposes_a", "transposes_b"),
    *("is_sparse", "saturates", "selector", "max_shift", "a_id", "b_id", "has_e8m0"),
    *("stored_k", "scales", "columns_of_a"),
)
BF16 = Instruction(kind="f16", a="bf16", b="bf16", n=128)
MXF8 = Instruction(kind="mxf8f6f4", a="e4m3", b="e5m2", n=64, facts={"scale_vector": 1})
MXF4 = Instruction(kind="mxf4", a="e2m1", b="e2m1", n=64, facts={"scale_vector": 2})
NVF4 = Instruction(
    kind="mxf4nvf4", a="e2m1", b="e2m1", n=64, scales=Scales.UE4M3, facts={"scale_vector": 4}
)
I8 = Instruction(kind="i8", a="s8", b="u8", d="s32", n=64)


def decode(bits: int, its_form: Form) -> tuple[dict[str, int], str]:
    """Return the fields of an instruction descriptor, and why it is refused."""
    fields = (ctypes.c_uint32 * len(FIELDS))()
    legal = library().tcgen05_instruction(ctypes.c_uint32(bits), its_form, fields)
    return dict(zip(FIELDS, fields, strict=True)), "" if legal else refusal_of(library())


def refusal(instruction: Instruction, bits: int | None = None) -> str:
    return decode(instruction.bits if bits is None else bits, instruction.form)[1]


# --- the instruction descriptor -------------------------------------------------------------------


@pytest.mark.parametrize(
    "instruction",
    [
        BF16,
        replace(BF16, a="f16", d="f16", negates=(True, False), transposes=(False, True)),
        Instruction(kind="tf32", a="tf32", b="tf32", m=64, n=8),
        Instruction(kind="f8f6f4", a="e3m2", b="e2m1", m=256, n=240, facts={"ctas": 2}),
        replace(I8, saturates=True, facts={"is_sparse": 1}),
        replace(MXF8, ids=(3, 1)),
        replace(MXF4, ids=(2, 0), facts={"scale_vector": 2, "is_sparse": 1}),
        NVF4,
        replace(NVF4, deep=True, ids=(0, 2), facts={"scale_vector": 4, "is_sm_103": 1}),
    ],
)
def test_fields_of_an_instruction(instruction: Instruction) -> None:
    fields, why = decode(instruction.bits, instruction.form)

    assert why == ""
    itemsize = 0.5 if instruction.kind.startswith("mxf4") else CODE_BITS[instruction.a] / 8
    wanted: tuple[Any, ...] = (
        *(TYPES.index(instruction.a), TYPES.index(instruction.b), SUMS.index(instruction.d)),
        *(instruction.m, instruction.n, instruction.k),
        *(*instruction.negates, *instruction.transposes),
        *(instruction.is_sparse, instruction.saturates, 0, 0),
        *(*instruction.ids, instruction.scales == Scales.UE8M0),
        *(instruction.stored_k, instruction.scale_count),
        instruction.stored_k * max(itemsize, 0.5 if itemsize == 0.5 else 1) / 4,
    )
    assert fields == dict(zip(FIELDS, wanted, strict=True))


def legal_shapes(its_form: Form, instruction: Instruction) -> set[tuple[int, int]]:
    return {
        (m, n)
        for m in range(16, 497, 16)
        for n in range(8, 505, 8)
        if not decode(replace(instruction, m=m, n=n).bits, its_form)[1]
    }


def stepped(*ms: int, n: range | tuple[int, ...]) -> set[tuple[int, int]]:
    return set(itertools.product(ms, n))


@pytest.mark.parametrize(
    ("instruction", "facts", "shapes"),
    [
        (BF16, {}, stepped(64, 128, n=range(8, 257, 8))),
        (BF16, {"ctas": 2}, stepped(128, 256, n=range(16, 257, 16))),
        (BF16, {"is_ws": 1}, stepped(32, 64, 128, n=(64, 128, 256))),
        (BF16, {"is_ws": 1, "is_sparse": 1}, stepped(32, 64, 128, n=(64, 128))),
        (I8, {}, stepped(64, 128, n=(8, 16, 24, *range(32, 257, 16)))),
        (I8, {"ctas": 2}, stepped(128, 256, n=range(32, 257, 32))),
        (MXF8, {}, stepped(128, n=range(8, 257, 8))),
        (replace(MXF8, transposes=(False, True)), {}, stepped(128, n=range(16, 257, 16))),
        (MXF4, {"ctas": 2}, stepped(128, 256, n=range(16, 257, 16))),
        (MXF4, {"ctas": 2, "is_sparse": 1}, stepped(256, n=range(16, 257, 16))),
    ],
)
def test_legal_shapes(
    instruction: Instruction, facts: dict[str, int], shapes: set[tuple[int, int]]
) -> None:
    whole = replace(instruction, facts={**instruction.facts, **facts})

    assert legal_shapes(whole.form, whole) == shapes


REFUSED: dict[str, tuple[Instruction, int | None, str]] = {
    "a reserved bit": (BF16, BF16.bits | 1 << 6, r"bits 0x40 of .* must be 0 for kind::f16"),
    "max shift without ws": (BF16, BF16.bits | 1 << 30, "bits 0x40000000"),
    "saturation of floats": (BF16, BF16.bits | 1 << 3, "bits 0x8"),
    "a scale factor id of fp8": (MXF8, MXF8.bits | 1 << 31, "bits 0x80000000"),
    "transposed fp4": (replace(MXF4, transposes=(True, False)), None, "bits 0x8000"),
    "type of A": (BF16, BF16.bits | 2 << 7, r"has 3 as the type of A, .* bf16 \(1\)"),
    "type of B": (MXF8, MXF8.bits | 6 << 10, "has 7 as the type of B"),
    "D of tf32": (Instruction(kind="tf32", a="tf32", b="tf32", d="f16"), None, "type of D"),
    "ue4m3 of mxf4": (replace(MXF4, scales=Scales.UE4M3), None, "ue4m3"),
    "sparsity": (BF16, BF16.bits | 1 << 2, "sparse_mismatch_between_idesc_mod"),
    "sparsity selector": (
        replace(BF16, facts={"is_sparse": 1}),
        replace(BF16, facts={"is_sparse": 1}).bits | 2,
        "sparsity selector 2",
    ),
    "transposed tensor memory": (
        replace(BF16, transposes=(True, False), facts={"a_in_tensor_memory": 1}),
        None,
        "in tensor memory",
    ),
    "negated integers": (replace(I8, negates=(True, False)), None, "no negation"),
    "K = 96 on sm_100": (replace(MXF4, deep=True), None, "sm_103a"),
    "odd scale factor id": (replace(MXF4, ids=(1, 0)), None, "byte 1 .* byte 0 or 2"),
    "scale factor id of 4X": (replace(NVF4, ids=(0, 2)), None, "of B from byte 2"),
    "greatest shift": (
        replace(BF16, m=32, facts={"is_ws": 1}),
        replace(BF16, m=32).bits | 1 << 30,
        "greatest shift of 8",
    ),
    "shape": (replace(BF16, m=256), None, r"M 256 and N 128.* M 64 or 128 and N 8 to 256"),
    "ws of a pair": (replace(BF16, facts={"is_ws": 1, "ctas": 2}), None, "cta_group::1"),
    "scale vector": (replace(MXF8, facts={"scale_vector": 2}), None, "mxf8f6f4 has 1X"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_instructions(name: str) -> None:
    instruction, bits, why = REFUSED[name]

    assert re.search(why, refusal(instruction, bits)), refusal(instruction, bits)


# --- the matrix descriptor ------------------------------------------------------------------------

SWIZZLE_CODES = {"none": 0, "32B": 6, "64B": 4, "128B": 2, "128B/32B": 1}


def descriptor(start: int, leading: int, stride: int, swizzle: str) -> int:
    return (
        start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | SWIZZLE_CODES[swizzle] << 61
    )


def swizzled(address: int, swizzle: str) -> int:
    """XOR of address bits, as (bits to change, bits they are XORed with)."""
    low, high, count = {
        "none": (4, 7, 0),
        "32B": (4, 7, 1),
        "64B": (4, 7, 2),
        "128B": (4, 7, 3),
        "128B/32B": (5, 7, 2),
    }[swizzle]
    for bit in range(count):
        address ^= (address >> (high + bit) & 1) << (low + bit)
    return address


def offset_of(shape: tuple[Any, ...], stride: tuple[Any, ...], coordinates: tuple[int, int]) -> int:
    """Return CuTe's offset of two coordinates, each in a nested shape: first mode fastest."""
    total = 0
    for sizes, steps, coordinate in zip(shape, stride, coordinates, strict=True):
        for size, step in zip(sizes, steps, strict=True):
            total += coordinate % size * step
            coordinate //= size
    return total


def gather(
    kind: str,
    bits: int,
    shape: tuple[int, int],
    window: npt.NDArray[np.uint8],
    *,
    transposed: bool = False,
    is_packed: bool = False,
) -> Codes:
    found = np.zeros(shape, code_dtype(kind))
    library().tcgen05_gather(
        ctypes.c_uint64(bits),
        ctypes.c_uint32(TYPES.index(kind)),
        *map(ctypes.c_uint32, (*shape, transposed, is_packed)),
        ctypes.c_void_p(window.ctypes.data),
        ctypes.c_void_p(found.ctypes.data),
    )
    return found


@pytest.mark.parametrize("kind", ["e2m1", "e2m3", "e3m2"])
def test_containers_of_16_bytes(kind: str) -> None:
    """16 elements, low bits first, in the first 8 or 12 of 16 bytes."""
    window = np.random.default_rng(1).integers(0, 256, 1 << 16, dtype=np.uint8)
    bits = CODE_BITS[kind]

    found = gather(kind, descriptor(0, 128, 256, "none"), (8, 32), window)

    for row, unit in itertools.product(range(8), range(2)):
        at = row * 16 + unit * 128
        number = int.from_bytes(window[at : at + 16].tobytes(), "little")
        wanted = [number >> bits * i & ((1 << bits) - 1) for i in range(16)]
        assert found[row, 16 * unit : 16 * unit + 16].tolist() == wanted


def test_packed_elements() -> None:
    window = np.random.default_rng(1).integers(0, 256, 1 << 16, dtype=np.uint8)

    found = gather("e2m1", descriptor(0, 16, 1024, "128B"), (8, 64), window, is_packed=True)

    for row, k in itertools.product(range(8), range(64)):
        byte = window[swizzled(row * 128 + k // 2, "128B")]
        assert found[row, k] == byte >> (4 * (k % 2)) & 15


@pytest.mark.parametrize(
    ("kind", "depth", "is_packed"),
    [
        ("bf16", 16, 0),
        ("tf32", 8, 0),
        ("e4m3", 32, 0),
        ("e3m2", 32, 0),
        ("e2m1", 32, 0),
        ("e2m1", 64, 1),
    ],
)
def test_rows_of_tensor_memory(kind: str, depth: int, is_packed: int) -> None:
    """A's 32 bits along K in each word; a four-bit element alone has bits 2 to 5 of its byte."""
    words = np.random.default_rng(2).integers(0, 1 << 32, 8, dtype=np.uint32)
    found = np.zeros(depth, code_dtype(kind))

    library().tcgen05_gather_lane(
        *map(ctypes.c_uint32, (TYPES.index(kind), depth, is_packed)),
        ctypes.c_void_p(words.ctypes.data),
        ctypes.c_void_p(found.ctypes.data),
    )

    number = int.from_bytes(words.tobytes(), "little")
    step = 256 // depth
    shift, mask = (2, 15) if kind == "e2m1" and not is_packed else (0, (1 << step) - 1)
    assert found.tolist() == [number >> (step * i + shift) & mask for i in range(depth)]


@pytest.mark.parametrize(
    ("bits", "kind", "transposed", "why"),
    [
        (0, "bf16", False, "bits 46 to 48 .* are 0, and tcgen05 needs 1"),
        (1 << 46 | 1 << 55, "bf16", False, "bits 53 to 60"),
        (1 << 46 | 3 << 61, "bf16", False, "swizzle code 3"),
        (1 << 46 | 1 << 52 | 2 << 61, "e2m1", False, "bit 52"),
        (1 << 46 | 2 << 61, "tf32", True, "code 1 alone"),
        (1 << 46 | 1 << 61, "bf16", True, "for tf32 alone"),
    ],
)
def test_refused_matrices(bits: int, kind: str, transposed: bool, why: str) -> None:
    arguments = (
        ctypes.c_uint64(bits),
        ctypes.c_uint32(TYPES.index(kind)),
        ctypes.c_uint32(transposed),
    )

    assert not library().tcgen05_matrix(*arguments)
    assert re.search(why, refusal_of(library()))


# --- tensor memory --------------------------------------------------------------------------------


def accumulators(its_form: Form, m: int, n: int) -> tuple[npt.NDArray[np.uint32], int]:
    """Return (cta, lane, column) of each element of D, [M, N, 3], and the columns of all."""
    places = np.full((m, n, 3), 1 << 31, np.uint32)
    arguments = ctypes.c_uint32(m), ctypes.c_uint32(n), ctypes.c_void_p(places.ctypes.data)
    return places, library().tcgen05_accumulators(its_form, *arguments)


LAYOUTS: dict[str, tuple[dict[str, int], int, Any]] = {
    "A": ({"ctas": 2}, 256, lambda m, n, _: (m // 128, m % 128, n)),
    "B": (
        {"ctas": 2},
        128,
        lambda m, n, width: (m // 64, m % 64 + 64 * (n >= width // 2), n % (width // 2)),
    ),
    "C": (
        {"ctas": 2, "is_sparse": 1},
        128,
        lambda m, n, _: (m // 64, 32 * (m % 64 // 16) + m % 16, n),
    ),
    "D": ({}, 128, lambda m, n, _: (0, m, n)),
    "D, ws": ({"is_ws": 1}, 128, lambda m, n, _: (0, m, n)),
    "E": ({"is_ws": 1}, 64, lambda m, n, width: (0, m + 64 * (n >= width // 2), n % (width // 2))),
    "F": ({}, 64, lambda m, n, _: (0, 32 * (m // 16) + m % 16, n)),
    "G": (
        {"is_ws": 1},
        32,
        lambda m, n, width: (0, m + 32 * (n // (width // 4)), n % (width // 4)),
    ),
}


@pytest.mark.parametrize("letter", LAYOUTS)
@pytest.mark.parametrize("n", [64, 128, 256])
def test_layouts_of_accumulators(letter: str, n: int) -> None:
    facts, m, place = LAYOUTS[letter]

    found, columns = accumulators(form("f16", **facts), m, n)

    wanted = [[place(row, column, n) for column in range(n)] for row in range(m)]
    np.testing.assert_array_equal(found, np.array(wanted))
    assert columns == found[..., 2].max() + 1
    assert len({tuple(one) for one in found.reshape(-1, 3).tolist()}) == m * n


@pytest.mark.parametrize("rows", [128, 256])
def test_scale_factors_follow_the_copied_atom(rows: int) -> None:
    """Byte (m % 32) * 16 + (m / 32) * 4 + k of 512, and 32 lanes of 4 columns of 4 bytes."""
    for row, index in itertools.product(range(rows), range(4)):
        place = (ctypes.c_uint32 * 3)()
        library().tcgen05_scale(*map(ctypes.c_uint32, (row, index, 0, rows)), place)
        atom, byte = divmod(row // 128 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + index, 512)
        assert list(place) == [byte // 16, atom * 4 + byte % 16 // 4, byte % 4]


# --- sparse metadata ------------------------------------------------------------------------------

# CuTe's shapes and strides of CUTLASS's tmem_e_frg, in elements along K: lane + 128 * bit / bits.
METADATA: dict[str, tuple[Instruction, tuple[Any, ...], tuple[Any, ...], float]] = {
    "tf32": (
        Instruction(kind="tf32", a="tf32", b="tf32", facts={"is_sparse": 1}),
        ((8, 2, 8), (8, 2)),
        ((1, 1024, 16), (128, 8)),
        2,
    ),
    "bf16": (
        replace(BF16, facts={"is_sparse": 1}),
        ((8, 2, 8), (16, 2)),
        ((1, 2048, 16), (128, 8)),
        1,
    ),
    "e4m3": (
        Instruction(kind="f8f6f4", a="e4m3", b="e4m3", facts={"is_sparse": 1}),
        ((128,), (64,)),
        ((1,), (128,)),
        1,
    ),
    "e2m1": (
        replace(MXF4, facts={"scale_vector": 2, "is_sparse": 1}),
        ((128,), (128,)),
        ((1,), (128,)),
        0.5,
    ),
}
SELECTORS = {"tf32": (0x4, 0xE)}
PLACES = {0x4: (0, 1), 0x8: (0, 2), 0xC: (0, 3), 0x9: (1, 2), 0xD: (1, 3), 0x6: (2, 1), 0xE: (2, 3)}


@pytest.mark.parametrize("kind", METADATA)
def test_sparse_metadata(kind: str) -> None:
    instruction, shape, stride, bits = METADATA[kind]
    rng = np.random.default_rng(4)
    legal = SELECTORS.get(kind, tuple(PLACES))
    group = int(4 / bits)
    selectors = rng.choice(legal, (128, instruction.k // group))
    lanes = np.zeros((128, 64), np.uint8)  # bits
    for row, k in itertools.product(range(128), range(0, instruction.k, group)):
        place, lane = divmod(offset_of(shape, stride, (row, k)), 128)
        for bit in range(4):
            lanes[lane, int(place * bits) + bit] = selectors[row, k // group] >> bit & 1
    words = np.packbits(lanes, axis=1, bitorder="little").view("<u4")

    for row in range(128):
        indices = np.zeros(instruction.stored_k, np.uint8)
        arguments = ctypes.c_void_p(words.ctypes.data), ctypes.c_uint32(2)
        refused = library().tcgen05_metadata(
            ctypes.c_uint32(instruction.bits),
            instruction.form,
            ctypes.c_uint32(row),
            *arguments,
            ctypes.c_void_p(indices.ctypes.data),
        )
        assert refused == 0
        assert indices.tolist() == [
            index
            for k, selector in enumerate(selectors[row])
            for index in chosen(kind, k * group, int(selector))
        ]


def chosen(kind: str, k: int, selector: int) -> list[int]:
    if kind == "tf32":
        return [k + (selector == 0xE)]
    if kind == "e2m1":
        return [k + 2 * place + half for place in PLACES[selector] for half in (0, 1)]
    return [k + place for place in PLACES[selector]]


@pytest.mark.parametrize("selector", [0x0, 0x1, 0x5, 0xF])
def test_illegal_metadata(selector: int) -> None:
    instruction = replace(BF16, facts={"is_sparse": 1})
    words = np.full((128, 1), int(f"{selector:x}" * 8, 16), np.uint32)
    indices = np.zeros(16, np.uint8)

    refused = library().tcgen05_metadata(
        ctypes.c_uint32(instruction.bits),
        instruction.form,
        ctypes.c_uint32(0),
        ctypes.c_void_p(words.ctypes.data),
        ctypes.c_uint32(1),
        ctypes.c_void_p(indices.ctypes.data),
    )

    assert refused == selector | 16
