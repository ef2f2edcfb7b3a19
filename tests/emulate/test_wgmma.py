"""Reports of wgmma and ldmatrix that go wrong; tests/parity has correct ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from bodies import chosen

from tmaasync import CompileError, EmulatedFault, EmulatedRace, Kernel, Swizzle, create_tma_tile

SOURCE = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;

struct SharedMemory {
    unsigned char bytes[8192];
};
extern "C" __device__ const int misuse_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void misuse(int what, int place, float* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    float sums[4] = {};
    u32 held[4] = {};
    const u32 base = ptx::shared_address(shared.bytes);
    const u32 row = base + threadIdx.x % 32 * 16;
    const u64 operand = initialize_wgmma_descriptor<Swizzle::kNone>(base, 1024, 128);
    if (what == 0 || what == 2 || what == 4) {
        for (int i = threadIdx.x; i < 8192; i += 128) shared.bytes[i] = 0;
        fence_async_view_proxy();
        __syncthreads();
    }
    if (what == 4) {
        if (threadIdx.x == 0) shared.bytes[place] = 1;
        __syncthreads();
    }
    wgmma_fence();
    if (what == 0) {
        wgmma_ss_atom<bfloat16>(sums, increase_descriptor_offset(operand, 7168), operand, false);
    } else if (what == 1) {
        ptx::ldmatrix_x4(row + 8, held[0], held[1], held[2], held[3]);
    } else if (what == 2) {
        __syncthreads();
        shared.bytes[threadIdx.x] = 1;
        ptx::ldmatrix_x4(row, held[0], held[1], held[2], held[3]);
    } else if (what == 5) {
        ptx::ldmatrix_x1(row, held[0]);
    } else if (what == 4) {
        int bytes[4];
        const u64 b = increase_descriptor_offset(operand, 4096);
        wgmma_ss_atom<signed char>(bytes, operand, b, false);
        wgmma_commit_group();
        wgmma_wait_group<0>();
    } else if (threadIdx.x == 5) {
        wgmma_ss_atom<bfloat16, bfloat16, Major::kK, Major::kK, -1>(sums, operand, operand, false);
    } else {
        wgmma_ss_atom<bfloat16>(sums, operand, operand, false);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sums[i] + held[i];
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        (0, EmulatedFault, r"an operand of wgmma reaches shared bytes 9200 to 9216; the CTA has 8"),
        (1, EmulatedFault, r"ldmatrix is given the shared address 8; it must be a multiple of 16"),
        (2, EmulatedRace, r"ldmatrix"),
        (5, EmulatedFault, r"a read of 16 bytes at shared offset .*, which nothing has written"),
        (3, EmulatedFault, r"threads 0 and 5 of a warpgroup .* types and scale"),
    ],
)
def test_misuse_is_reported(what: int, error: type[Exception], said: str) -> None:
    out = np.zeros(512, np.float32)

    with pytest.raises(error, match=said):
        Kernel(SOURCE, "misuse")(1, 128, (what, 0, out))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("place", "is_read"),
    [(2047, True), (2048, False), (4223, True), (4224, False), (5247, True), (5248, False)],
)
def test_the_bytes_of_both_operands_are_watched_and_no_others(place: int, is_read: bool) -> None:
    """64 rows of A and 8 of B, of two core matrices along K, without a proxy fence."""
    launch = Kernel(SOURCE, "misuse").prepare(1, 128, (4, place, np.zeros(512, np.float32)))

    if is_read:
        with pytest.raises(EmulatedRace, match="fence_async_view_proxy"):
            launch()
    else:
        launch()


def test_an_operand_that_the_chip_does_not_have_is_refused_on_the_cpu_too() -> None:
    source = SOURCE.replace("<bfloat16>", "<signed char>")

    with pytest.raises(CompileError) as caught:
        Kernel(source, "misuse")(1, 128, (0, 0, np.zeros(512, np.float32)))

    assert "accumulators are float, u32 (pairs of fp16)" in caught.value.log


LOADED = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;

struct SharedMemory {
    alignas(1024) Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int loaded_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void loaded(
    const __grid_constant__ Tile tile, float* out, bool is_rewritten, int what
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
    }
    __syncthreads();
    shared.full.wait(0);
    if (is_rewritten) {
        for (int i = threadIdx.x; i < 64 * 64; i += 128) shared.tile.data()[i] = 1;
        fence_async_view_proxy();
        __syncthreads();
    }
    float sums[4] = {};
    const u32 at = ptx::shared_address(&shared.tile);
    u64 operand = 0;
SWIZZLES
    wgmma_fence();
    wgmma_ss_atom<bfloat16>(sums, operand, operand, false);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sums[i];
}
"""
SWIZZLES = {
    Swizzle.NONE: "no swizzle",
    Swizzle.B32: "a swizzle of 32 bytes",
    Swizzle.B64: "a swizzle of 64 bytes",
    Swizzle.B128: "a swizzle of 128 bytes",
}


OPERANDS = chosen(
    f"operand = initialize_wgmma_descriptor<Swizzle::{name}>(at, 128, 1024);"
    for name in ("kNone", "k32B", "k64B", "k128B")
)


def multiply_loaded(loaded: Swizzle, read: Swizzle, *, is_rewritten: bool = False) -> None:
    tile = create_tma_tile(np.ones((64, 64), ml_dtypes.bfloat16), (64, 64), swizzle=loaded)
    kernel = Kernel(LOADED.replace("SWIZZLES", OPERANDS), "loaded", types={"Tile": tile})
    out = np.zeros(512, np.float32)
    kernel(1, 128, (tile, out, is_rewritten, [*SWIZZLES].index(read)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loaded", SWIZZLES)
def test_an_operand_has_the_swizzle_that_it_was_loaded_with(loaded: Swizzle) -> None:
    multiply_loaded(loaded, loaded)

    for read in set(SWIZZLES) - {loaded}:
        said = (
            rf"wgmma reads A at shared offset 0 \(tile\) with {SWIZZLES[read]}, and the TMA load "
            rf"of thread 0 at kernel\.cu:\d+ wrote it with {SWIZZLES[loaded]}\. Give the tensor "
        )
        with pytest.raises(EmulatedFault, match=said):
            multiply_loaded(loaded, read)


def test_an_operand_that_threads_wrote_after_the_load_may_have_any_swizzle() -> None:
    multiply_loaded(Swizzle.B64, Swizzle.B128, is_rewritten=True)


# A's registers are locals of an inner block. Locals of later blocks are other registers, which the
# thread may write while wgmma runs.
INNER_BLOCKS = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;

struct SharedMemory {
    alignas(1024) bfloat16 b[128];
};
extern "C" __device__ const int scoped_shared_bytes = sizeof(SharedMemory);

__device__ __noinline__ void fill(u32 (&values)[4], u32 value) {
    for (int i = 0; i < 4; ++i) values[i] = value;
}

extern "C" __global__ void scoped(float* out, u32* others, bool writes_a) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int thread = threadIdx.x;
    shared.b[thread] = bfloat16(1.f);
    fence_async_view_proxy();
    __syncthreads();
    const u32 base = ptx::shared_address(shared.b);
    const u64 b = initialize_wgmma_descriptor<Swizzle::kNone>(base, 128, 128);
    float sums[4];
    {
        u32 a[16][4];  // as large as no other local, so that a compiler gives others its memory
        for (auto& step : a) fill(step, 0x3f803f80);
        wgmma_fence();
        wgmma_rs_atom<bfloat16, bfloat16>(sums, a[0], b, false);
        wgmma_commit_group();
        if (writes_a) fill(a[0], 1);
    }
    {
        u32 other[4];
        fill(other, 5 + thread);
        for (int i = 0; i < 4; ++i) others[thread] += other[i];
    }
    {
        struct { u32 values[4]; } other;
        fill(other.values, 5 + thread);
        for (int i = 0; i < 4; ++i) others[thread] += other.values[i];
    }
    wgmma_wait_group<0>();
    for (int i = 0; i < 4; ++i) out[thread * 4 + i] = sums[i];
}
"""


def test_a_later_local_is_no_register_of_wgmma_and_its_own_are() -> None:
    out, others = np.zeros(512, np.float32), np.zeros(128, np.uint32)
    kernel = Kernel(INNER_BLOCKS, "scoped")

    kernel(1, 128, (out, others, False))

    assert (out == 16).all()
    assert (others == 4 * 2 * (5 + np.arange(128))).all()
    with pytest.raises(EmulatedRace, match="A's registers"):
        kernel(1, 128, (out, others, True))
