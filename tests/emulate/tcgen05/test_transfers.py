"""tcgen05.ld and tcgen05.st move the words of every shape as the PTX ISA's figures show."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import Kernel

Words = npt.NDArray[np.uint32]


class Shape(NamedTuple):
    """A shape, the registers of a thread and the columns of one repeat, and the most repeats."""

    name: str
    lanes: int
    registers: int
    columns: int
    repeats: int


SHAPES = (
    Shape("32x32b", 32, 1, 1, 128),
    Shape("16x64b", 16, 1, 2, 128),
    Shape("16x128b", 16, 2, 4, 64),
    Shape("16x256b", 16, 4, 8, 32),
    Shape("16x32bx2", 16, 1, 1, 128),
)
SPLIT = 200  # columns between the halves of 16x32bx2


def holder(shape: Shape, lane: int, column: int) -> tuple[int, int]:
    """Return the thread and the register that have a word; halves of 16x32bx2 are in columns."""
    rest = lane % 8 * 4
    if shape.name == "16x64b":
        return rest + column % 2 * 2 + lane // 8, column // 2
    if shape.name == "16x128b":
        return rest + column % 4, column // 4 * 2 + lane // 8
    if shape.name == "16x256b":
        return rest + column % 8 // 2, column // 8 * 4 + lane // 8 * 2 + column % 2
    if shape.name == "16x32bx2":
        return lane + 16 * (column >= SPLIT), column % SPLIT
    return lane, column


SOURCE = """
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

template <Tcgen05Shape kShape, bool kPacked, int kCount>
__device__ void move(u32 address, const u32* in, u32* out) {
    constexpr int kSplit = kShape == Tcgen05Shape::k16x32bx2 ? SPLIT : -1;
    u32 held[kCount];
    for (int i = 0; i < kCount; ++i) held[i] = in[threadIdx.x * kCount + i];
    tcgen05_st<kShape, kPacked, kSplit>(address, held);
    tcgen05_wait_st();
    tcgen05_ld<kShape, kPacked, kSplit>(held, address);
    tcgen05_wait_ld();
    for (int i = 0; i < kCount; ++i) out[threadIdx.x * kCount + i] = held[i];
}

// Stores `in`, loads it into `out`, and all of the tensor memory into `whole`: lane by lane.
extern "C" __global__ void transfer(u32 lane, const u32* in, u32* out, u32* whole) {
    __shared__ u32 base;
    if (threadIdx.x < 32) {
        tcgen05_alloc(static_cast<u32>(__cvta_generic_to_shared(&base)), 512);
        tcgen05_relinquish_alloc_permit();
    }
    __syncthreads();
    const u32 own = base + (threadIdx.x / 32 * 32 << 16);
    for (u32 column = 0; column < 512; column += 128) {
        u32 zeros[128] = {};
        tcgen05_st<Tcgen05Shape::k32x32b>(own + column, zeros);
    }
    tcgen05_wait_st();
    move<Tcgen05Shape::kSHAPE, PACKED, COUNT>(own + (lane << 16) + COLUMN, in, out);
    for (u32 column = 0; column < 512; column += 128) {
        u32 held[128];
        tcgen05_ld<Tcgen05Shape::k32x32b>(held, own + column);
        tcgen05_wait_ld();
        for (u32 i = 0; i < 128; ++i) whole[threadIdx.x * 512 + column + i] = held[i];
    }
    __syncthreads();
    if (threadIdx.x < 32) tcgen05_dealloc(base, 512);
}
"""
COLUMN = 8  # where the transfers begin


def cases() -> list[tuple[Shape, int, bool]]:
    chosen = []
    for shape in SHAPES:
        most = shape.repeats // 2 if shape.name == "16x64b" else shape.repeats
        chosen += [(shape, repeats, False) for repeats in (1, 4, most)]
        chosen += [(shape, 2, True)]
    return chosen


@functools.cache
def kernel(shape: Shape, repeats: int, packed: bool) -> Kernel:
    text = SOURCE.replace("kSHAPE", f"k{shape.name}").replace("PACKED", str(packed).lower())
    text = text.replace("COUNT", str(repeats * shape.registers)).replace("SPLIT", str(SPLIT))
    return Kernel(text.replace("COLUMN", str(COLUMN)), "transfer", arch="sm_100a")


def wanted(shape: Shape, repeats: int, packed: bool, lane: int, words: Words) -> Words:
    """Return tensor memory after the store: [warp, lane, column]."""
    memory = np.zeros((4, 32, 512), np.uint32)
    halves = 2 if packed else 1
    split = shape.name == "16x32bx2"
    columns = [*range(repeats * shape.columns)]
    columns += [SPLIT + one for one in columns] if split else []
    for row in range(shape.lanes):
        for column in columns:
            thread, register = holder(shape, row, column)
            held = words[:, thread, register]
            first = COLUMN + column % SPLIT * halves + column // SPLIT * SPLIT
            for half in range(halves):
                part = held >> np.uint32(16 * half) & np.uint32(0xFFFF) if packed else held
                memory[:, lane + row, first + half] = part
    return memory


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shape", "repeats", "packed"), cases(), ids=lambda one: getattr(one, "name", str(one))
)
def test_every_shape_stores_and_loads_its_words(shape: Shape, repeats: int, packed: bool) -> None:
    count = repeats * shape.registers
    words = np.random.default_rng(count).integers(0, 2**32, (4, 32, count), np.uint32)
    for lane in (0, 16)[: 32 // shape.lanes]:
        out, whole = np.zeros_like(words), np.zeros((4, 32, 512), np.uint32)
        kernel(shape, repeats, packed)(1, 128, (lane, words, out, whole))
        np.testing.assert_array_equal(out, words)
        np.testing.assert_array_equal(whole, wanted(shape, repeats, packed, lane, words))


REDUCED = """
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

template <Tcgen05Reduction kReduction>
__device__ void reduce(u32 address, u32* out) {
    u32 held[8], reduced;
    tcgen05_ld_red<Tcgen05Shape::k32x32b, kReduction>(held, reduced, address);
    tcgen05_wait_ld();
    out[threadIdx.x] = reduced;
}

extern "C" __global__ void reductions(const u32* in, u32* out) {
    __shared__ u32 base;
    tcgen05_alloc(static_cast<u32>(__cvta_generic_to_shared(&base)), 32);
    __syncwarp();
    u32 held[8];
    for (int i = 0; i < 8; ++i) held[i] = in[threadIdx.x * 8 + i];
    tcgen05_st<Tcgen05Shape::k32x32b>(base, held);
    tcgen05_wait_st();
    reduce<Tcgen05Reduction::kMinU32>(base, out);
    reduce<Tcgen05Reduction::kMaxU32>(base, out + 32);
    reduce<Tcgen05Reduction::kMinS32>(base, out + 64);
    reduce<Tcgen05Reduction::kMaxS32>(base, out + 96);
    reduce<Tcgen05Reduction::kMinF32>(base, out + 128);
    reduce<Tcgen05Reduction::kMaxF32>(base, out + 160);
    u32 reduced;
    asm volatile(
        "tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.NaN.f32 {%0, %1}, %2, [%3];"
        : "=r"(held[0]), "=r"(held[1]), "=r"(reduced) : "r"(base));
    tcgen05_wait_ld();
    out[192 + threadIdx.x] = reduced;
    tcgen05_dealloc(base, 32);
}
"""


@pytest.mark.slow
def test_a_load_reduces_the_columns_of_each_thread_on_sm_103a() -> None:
    words = np.random.default_rng(5).integers(0, 2**32, (32, 8), np.uint32)
    words[0, :2] = np.array([np.nan, 3], np.float32).view(np.uint32)
    words[1, :2] = np.array([-7, 3], np.float32).view(np.uint32)
    out = np.zeros((7, 32), np.uint32)
    Kernel(REDUCED, "reductions", arch="sm_103a")(1, 32, (words, out))

    signed, floats = words.view(np.int32), words.view(np.float32)
    np.testing.assert_array_equal(out[0], words.min(axis=1))
    np.testing.assert_array_equal(out[1], words.max(axis=1))
    np.testing.assert_array_equal(out[2].view(np.int32), signed.min(axis=1))
    np.testing.assert_array_equal(out[3].view(np.int32), signed.max(axis=1))
    np.testing.assert_array_equal(out[4].view(np.float32), np.fmin.reduce(floats, axis=1))
    np.testing.assert_array_equal(out[5].view(np.float32), np.fmax.reduce(floats, axis=1))
    np.testing.assert_array_equal(out[6].view(np.float32), np.max(np.abs(floats[:, :2]), axis=1))
