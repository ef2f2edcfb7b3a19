"""``tmaasync.tcgen05`` and the device header describe what the emulator's runtime reads."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulate.tcgen05.tcgen05_library import TYPES, Form, form, library

from tmaasync import Kernel, Swizzle, tcgen05
from tmaasync.errors import ArgumentError
from tmaasync.tcgen05 import InstructionDescriptor, MmaForm, mma_form

NAMES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "tfloat32": "tf32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float6_e2m3fn": "e2m3",
    "float6_e3m2fn": "e3m2",
    "float4_e2m1fn": "e2m1",
    "uint8": "u8",
    "int8": "s8",
}
DENSE = [
    mma_form("f16"),
    mma_form("bf16", accumulator="float16"),
    mma_form("tf32"),
    mma_form("e4m3", "e2m1"),
    mma_form("u8", "s8"),
    mma_form("e3m2", "e5m2", scale_type="ue8m0"),
    mma_form("e2m1", scale_type="ue8m0"),
    mma_form("e2m1", scale_type="ue4m3"),
    replace(mma_form("e2m1", scale_type="ue4m3"), scale_type="ue8m0"),
]
FORMS = [
    *DENSE,
    *(replace(one, cta_group=2) for one in DENSE),
    *(replace(one, is_sparse=True) for one in DENSE),
    *(replace(one, cta_group=2, is_sparse=True) for one in DENSE),
    *(replace(one, is_ws=True) for one in DENSE if not one.is_block_scaled),
]


def name_of(one: MmaForm) -> str:
    flags = [name for name in ("is_sparse", "is_ws") if getattr(one, name)]
    return "-".join([one.kind, one.a, one.b, f"cta{one.cta_group}", one.scale_type, *flags])


def runtime_form(one: MmaForm) -> Form:
    return form(
        one.kind,
        ctas=one.cta_group,
        is_sparse=one.is_sparse,
        is_ws=one.is_ws,
        scale_vector=one.scale_vector,
    )


def decoded(bits: int, its_form: Form) -> tuple[bool, list[int]]:
    fields = (ctypes.c_uint32 * 20)()
    legal = bool(library().tcgen05_instruction(ctypes.c_uint32(bits), its_form, fields))
    return legal, list(fields)


@pytest.mark.parametrize("one", FORMS, ids=name_of)
def test_the_runtime_reads_the_hosts_instruction(one: MmaForm) -> None:
    ids = {0: (0, 0), 1: (3, 1), 2: (2, 0), 4: (0, 0)}[one.scale_vector]
    m, n = one.m_values[-1], one.n_values()[-1]
    instruction = InstructionDescriptor(form=one, m=m, n=n, a_scale_id=ids[0], b_scale_id=ids[1])

    legal, fields = decoded(instruction.encode(), runtime_form(one))

    assert legal
    accumulator = ("float32", "float16", "int32").index(one.accumulator)
    types = [TYPES.index(NAMES[name]) for name in (one.a, one.b)]
    assert fields[:6] == [*types, accumulator, m, n, one.k]
    assert fields[10] == one.is_sparse
    assert fields[14:16] == list(ids)


@pytest.mark.parametrize("one", FORMS, ids=name_of)
def test_host_and_runtime_have_the_same_shapes(one: MmaForm) -> None:
    known = InstructionDescriptor(form=one, m=one.m_values[0], n=one.n_values()[-1]).encode()
    without_shape = known & ~(63 << 17 | 31 << 24)

    for m, n in itertools.product(range(16, 497, 16), range(8, 505, 8)):
        legal, _ = decoded(without_shape | n // 8 << 17 | m // 16 << 24, runtime_form(one))
        assert legal == (not one.shape_violations(m, n)), (m, n)


# --- operands in shared memory --------------------------------------------------------------------

SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128, Swizzle.B128_ATOM_32B)
OPERANDS = [
    (dtype, swizzle, is_k_major)
    for dtype, swizzle, is_k_major in itertools.product(
        ("bfloat16", "tfloat32", "int8"), SWIZZLES, (True, False)
    )
    if is_k_major or (dtype == "tfloat32") == (swizzle is Swizzle.B128_ATOM_32B)
]
EXTENT, DEPTH_BYTES, BASE = 128, 256, 3 * 1024


def swizzled(offset: npt.NDArray[np.int64], swizzle: Swizzle) -> npt.NDArray[np.int64]:
    """Return where TMA puts a byte of a box: CUDA driver API, CUtensorMapSwizzle."""
    if swizzle is Swizzle.B128_ATOM_32B:
        return offset ^ ((offset >> 7 & 3) << 5)
    return offset ^ ((offset >> 7 & ((1 << swizzle) - 1)) << 4)


def in_boxes(matrix: npt.NDArray[Any], swizzle: Swizzle) -> npt.NDArray[np.uint8]:
    """Return the bytes of a matrix in boxes one span wide: [panels][rows][span]."""
    rows, columns = matrix.shape
    itemsize, span = matrix.itemsize, swizzle.span_bytes
    row, column = np.indices((rows, columns)) * np.array([1, itemsize])[:, None, None]
    start = swizzled(BASE + column // span * rows * span + row * span + column % span, swizzle)
    window = np.zeros(BASE + matrix.nbytes, np.uint8)
    parts = matrix.view(np.uint8).reshape(rows, columns, itemsize)
    for byte in range(itemsize):
        window[start + byte] = parts[..., byte]
    return window


@pytest.mark.parametrize(("dtype", "swizzle", "is_k_major"), OPERANDS)
def test_the_runtime_reads_a_tile_by_the_hosts_descriptor(
    dtype: str, swizzle: Swizzle, is_k_major: bool
) -> None:
    carrier = {"bfloat16": np.uint16, "tfloat32": np.uint32, "int8": np.uint8}[dtype]
    itemsize = np.dtype(carrier).itemsize
    rng = np.random.default_rng(1)
    matrix = rng.integers(0, 256, (EXTENT, DEPTH_BYTES), np.uint8).view(carrier)
    tile = matrix if is_k_major else np.ascontiguousarray(matrix.T)
    window = in_boxes(tile, swizzle)

    params = tcgen05.compute_descriptor_params(
        tile.shape, dtype, swizzle=swizzle, is_k_major=is_k_major
    )

    depth = 32 // itemsize
    for step, first in itertools.product(range(DEPTH_BYTES // 32), (0, 64)):
        bits = params.descriptor(BASE, step, first).encode()
        found = np.zeros((64, depth), carrier)
        library().tcgen05_gather(
            ctypes.c_uint64(bits),
            *map(ctypes.c_uint32, (TYPES.index(NAMES[dtype]), 64, depth, not is_k_major, 0)),
            ctypes.c_void_p(window.ctypes.data),
            ctypes.c_void_p(found.ctypes.data),
        )
        wanted = matrix[first : first + 64, step * depth : (step + 1) * depth]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("shape", "dtype", "facts", "argument"),
    [
        ((128, 64), "tf32", {"swizzle": "128B", "is_k_major": False}, "swizzle"),
        ((64, 128), "bf16", {"swizzle": Swizzle.B128_ATOM_32B, "is_k_major": False}, "swizzle"),
        ((128, 40), "bf16", {"swizzle": "128B"}, r"shape\[1\]"),
        ((100, 64), "bf16", {"swizzle": "128B"}, r"shape\[0\]"),
        ((128, 64), "bf16", {"swizzle": "128B", "is_packed": True}, "is_packed"),
        ((128, 256), "e2m1", {"swizzle": Swizzle.B128_ATOM_64B}, "swizzle"),
    ],
)
def test_refused_operands(
    shape: tuple[int, int], dtype: str, facts: dict[str, Any], argument: str
) -> None:
    with pytest.raises(ArgumentError, match=argument):
        tcgen05.compute_descriptor_params(shape, dtype, **facts)


@pytest.mark.parametrize(
    ("facts", "argument"),
    [
        ({"m": 32}, "m is 32"),
        ({"n": 12}, "n is 12"),
        ({"saturates": True}, "saturates"),
        ({"a_scale_id": 1}, "a_scale_id"),
        ({"form": mma_form("s8"), "negates_a": True}, "negates_a"),
        ({"form": mma_form("e2m1", scale_type="ue8m0"), "is_b_k_major": False}, "is_b_k_major"),
    ],
)
def test_refused_instructions(facts: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentError, match=argument):
        InstructionDescriptor(**{"form": mma_form("bf16"), "m": 128, "n": 128, **facts})


@pytest.mark.parametrize(
    ("arguments", "facts", "argument"),
    [
        (("float64",), {}, "a is float64"),
        (("bf16", "e4m3"), {}, "b is float8_e4m3fn"),
        (("s8",), {"accumulator": "float32"}, "accumulator"),
        (("bf16",), {"cta_group": 3}, "cta_group"),
        (("e4m3",), {"scale_type": "ue4m3"}, "a is float8_e4m3fn"),
        (("bf16",), {"cta_group": 2, "is_ws": True}, "is_ws"),
    ],
)
def test_refused_forms(arguments: tuple[str, ...], facts: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentError, match=argument):
        mma_form(*arguments, **facts)


# --- tensor memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("one", FORMS, ids=name_of)
def test_accumulators_are_where_the_runtime_puts_them(one: MmaForm) -> None:
    for m in one.m_values:
        n = one.n_values()[-1]
        places = np.zeros((m, n, 3), np.uint32)
        library().tcgen05_accumulators(
            runtime_form(one),
            ctypes.c_uint32(m),
            ctypes.c_uint32(n),
            ctypes.c_void_p(places.ctypes.data),
        )
        _, *found = tcgen05.accumulator_layout(one, m, n)
        np.testing.assert_array_equal(np.stack(found, -1), places)


def test_scale_factors_are_copied_to_where_the_runtime_reads_them() -> None:
    rows = 256
    lane, column, byte = tcgen05.scale_factor_layout(rows)
    # tcgen05.cp.32x128b: 16 bytes of shared memory to the 4 columns of a lane, atom after atom.
    offsets = tcgen05.scale_factor_offsets(rows)
    copied = offsets % 512 // 16, offsets // 512 * 4 + offsets % 16 // 4, offsets % 4
    for found, wanted in zip((lane, column, byte), copied, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for row, scale in itertools.product((0, 31, 33, 130, 255), range(4)):
        place = (ctypes.c_uint32 * 3)()
        library().tcgen05_scale(*map(ctypes.c_uint32, (row, scale, 0, rows)), place)
        assert list(place) == [lane[row, scale], column[row, scale], byte[row, scale]]


@pytest.mark.parametrize("one", [one for one in FORMS if one.is_sparse], ids=name_of)
def test_sparse_metadata_is_where_the_runtime_reads_it(one: MmaForm) -> None:
    lane, bit = tcgen05.sparse_metadata_layout(one)
    selectors = np.random.default_rng(3).choice([0x4, 0xE], lane.shape)
    words = np.zeros((128, 2), np.uint32)
    for row, group in np.ndindex(*lane.shape):
        at = bit[row, group]
        words[lane[row, group], at // 32] |= np.uint32(int(selectors[row, group]) << at % 32)
    bits = InstructionDescriptor(form=one, m=one.m_values[-1], n=64).encode()
    for row in range(128):
        indices = np.zeros(one.k // 2, np.uint8)
        refused = library().tcgen05_metadata(
            ctypes.c_uint32(bits),
            runtime_form(one),
            ctypes.c_uint32(row),
            ctypes.c_void_p(words.ctypes.data),
            ctypes.c_uint32(2),
            ctypes.c_void_p(indices.ctypes.data),
        )
        assert refused == 0
        per_group = one.k // lane.shape[1]
        chosen = indices.reshape(lane.shape[1], -1) - np.arange(lane.shape[1])[:, None] * per_group
        is_high = chosen[:, 0] >= per_group // 2
        assert is_high.tolist() == (selectors[row] == 0xE).tolist()


# --- the device header ----------------------------------------------------------------------------

BITS = {
    "tcgen05_instruction_descriptor<bfloat16, bfloat16, float, 128, 256>()": InstructionDescriptor(
        form=mma_form("bf16"), m=128, n=256
    ),
    "tcgen05_instruction_descriptor<float16, float16, float16, 256, 128, 2>"
    "({Major::kMN, Major::kK, true, false})": InstructionDescriptor(
        form=mma_form("f16", accumulator="float16", cta_group=2),
        m=256,
        n=128,
        is_a_k_major=False,
        negates_a=True,
    ),
    "tcgen05_instruction_descriptor<float, tfloat32, float, 64, 8>()": InstructionDescriptor(
        form=mma_form("tf32"), m=64, n=8
    ),
    "tcgen05_instruction_descriptor<float6_e3m2, float8_e5m2, float, 128, 96>"
    "({Major::kK, Major::kMN, false, true})": InstructionDescriptor(
        form=mma_form("e3m2", "e5m2"), m=128, n=96, is_b_k_major=False, negates_b=True
    ),
    "tcgen05_instruction_descriptor<signed char, unsigned char, int, 128, 24>"
    "({Major::kK, Major::kK, false, false, true, true})": InstructionDescriptor(
        form=mma_form("s8", "u8", is_sparse=True), m=128, n=24, saturates=True
    ),
    "tcgen05_scaled_instruction_descriptor<float8_e4m3, float4_e2m1, scale_ue8m0, 128, 64>(3, 1)": (
        InstructionDescriptor(
            form=mma_form("e4m3", "e2m1", scale_type="ue8m0"),
            m=128,
            n=64,
            a_scale_id=3,
            b_scale_id=1,
        )
    ),
    "tcgen05_scaled_instruction_descriptor"
    "<float4_e2m1, float4_e2m1, scale_ue4m3, 256, 256, 2, true>(0, 0)": InstructionDescriptor(
        form=mma_form("e2m1", scale_type="ue4m3", cta_group=2), m=256, n=256
    ),
}
SOURCE = """
#include <tmaasync/tcgen05_descriptor.cuh>
using namespace tmaasync;

template <typename T, int kSwizzle, bool kIsKMajor>
__device__ void describe(u64* descriptors) {
    constexpr int kDepth = 256 / sizeof(T), kExtent = 128;
    using Buffer = Tcgen05Buffer<
        T, static_cast<Swizzle>(kSwizzle), kIsKMajor ? Major::kK : Major::kMN,
        kIsKMajor ? kExtent : kDepth, kIsKMajor ? kDepth : kExtent>;
    for (int step = 0; step < Buffer::kSteps; ++step) {
        descriptors[step] = Buffer::descriptor(3 * 1024u, 64) + Buffer::step_offset(step);
    }
}

extern "C" __global__ void describe_all(u32* instructions, u64* descriptors) {
CALLS
}
"""


@pytest.mark.slow
def test_kernels_compute_the_hosts_descriptors() -> None:
    instructions = np.zeros(len(BITS), np.uint32)
    descriptors = np.zeros((len(OPERANDS), DEPTH_BYTES // 32), np.uint64)
    types = {"bfloat16": "bfloat16", "tfloat32": "tfloat32", "int8": "signed char"}
    lines = [
        f"    constexpr u32 k{i} = {call};\n    instructions[{i}] = k{i};"
        for i, call in enumerate(BITS)
    ]
    lines += [
        f"    describe<{types[dtype]}, {int(swizzle)}, {str(is_k_major).lower()}>"
        f"(descriptors + {i * descriptors.shape[1]});"
        for i, (dtype, swizzle, is_k_major) in enumerate(OPERANDS)
    ]
    source = SOURCE.replace("CALLS", "\n".join(lines))

    Kernel(source, "describe_all", arch="sm_100a")((1,), (1,), (instructions, descriptors))

    assert instructions.tolist() == [one.encode() for one in BITS.values()]
    for (dtype, swizzle, is_k_major), row in zip(OPERANDS, descriptors, strict=True):
        itemsize = {"bfloat16": 2, "tfloat32": 4, "int8": 1}[dtype]
        sides = (EXTENT, DEPTH_BYTES // itemsize)
        params = tcgen05.compute_descriptor_params(
            sides if is_k_major else sides[::-1], dtype, swizzle=swizzle, is_k_major=is_k_major
        )
        wanted = [params.descriptor(BASE, step, 64).encode() for step in range(len(row))]
        assert row.tolist() == wanted, (dtype, swizzle, is_k_major)
