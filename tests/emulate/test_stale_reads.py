"""A block reads again what another overwrote: without an acquire, L1 may hold the old value."""

from __future__ import annotations

import numpy as np
import pytest
from bodies import chosen

from tmaasync import EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

# Block 0 writes slots of a ring in global memory, block 1 adds them up, round after round.
SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int ring_shared_bytes = sizeof(SharedMemory);

__device__ int polled(int* flag, int what) {
POLLS
    return 0;
}
__device__ void post(int* flag, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

extern "C" __global__ void ring(
    const __grid_constant__ Tile tile, float* slot, int* full, int* empty, float* sum, int rounds,
    int what
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.full.init(1);
    fence_barrier_init();
    __syncthreads();
    float total = 0;
    for (int round = 1; round <= rounds; ++round) {
        if (blockIdx.x == 0) {
            if (threadIdx.x == 0) while (polled(empty, what) != round - 1) __nanosleep(20);
            __syncthreads();
            slot[threadIdx.x] = round;
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) post(full, round);
        } else {
            if (threadIdx.x == 0) while (polled(full, what) != round) __nanosleep(20);
            __syncthreads();
READS
            __syncthreads();
            if (threadIdx.x == 0) post(empty, round);
        }
    }
    if (blockIdx.x == 1) sum[threadIdx.x] = total;
}
"""
VOLATILE = "return *(volatile int*)flag;"
ATOMIC = "return atomicAdd(flag, 0);"
ACQUIRE = """int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;"""
RELAXED = ACQUIRE.replace("acquire", "relaxed")
READ = "total += slot[threadIdx.x];"
LOAD = """
    if (threadIdx.x == 0) {
        ptx::fence_proxy_async_global();
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
    }
    shared.full.wait(round + 1 & 1);
    total += shared.tile.data()[threadIdx.x];
"""
SOUND = {
    "an acquire": (ACQUIRE, READ, 4),
    "a fence after the poll": (f"{VOLATILE}\n", f"__threadfence(); {READ}", 4),
    "a fence in the thread that polls": (
        "int value = atomicAdd(flag, 0); __threadfence(); return value;",
        READ,
        4,
    ),
    "volatile reads": (VOLATILE, "total += *(volatile float*)&slot[threadIdx.x];", 4),
    "TMA, which reads L2": (RELAXED, LOAD, 4),
    # As in CUDA's sample threadFenceReduction: no cache holds what nobody read before.
    "the first round alone": (ATOMIC, READ, 1),
}


UNSOUND = {
    "a volatile poll": (VOLATILE, READ, 4),
    "an atomic poll": (ATOMIC, READ, 4),
    "a relaxed poll": (RELAXED, READ, 4),
}
CASES = {**SOUND, **UNSOUND}
POLLS, READS, ROUNDS = zip(*CASES.values(), strict=True)
TEXT = SOURCE.replace("POLLS", chosen(POLLS)).replace("READS", chosen(READS))


def run(name: str) -> float:
    slot, total = np.zeros((8, 8), np.float32), np.full(64, np.nan, np.float32)
    full, empty = (np.zeros(1, np.int32) for _ in range(2))
    tile, number = create_tma_tile(slot, (8, 8)), [*CASES].index(name)
    kernel = Kernel(TEXT, "ring", types={"Tile": tile})
    kernel(2, 64, (tile, slot, full, empty, total, ROUNDS[number], number))
    assert (total == total[0]).all()
    return float(total[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SOUND)
def test_reads_after_an_acquire_or_past_l1_are_no_race(name: str) -> None:
    for policy in ("round_robin", "random", "adversarial"):
        with scheduled(policy, races=True):
            assert run(name) == sum(range(CASES[name][2] + 1))


@pytest.mark.parametrize("name", UNSOUND)
def test_reads_again_after_a_relaxed_poll_are_a_race_with_its_remedy(name: str) -> None:
    match = (
        r"a race on tile\[\d\]\[\d\] .*:\n"
        r"  block \(0, 0, 0\), thread \d+ at kernel.cu:\d+: ordinary write\n"
        r"  block \(1, 0, 0\), thread \d+ at kernel.cu:\d+: ordinary read\n"
        r".*L1 .*__threadfence\(\) after the poll"
    )
    for policy in ("round_robin", "random", "adversarial"):
        with scheduled(policy, races=True), pytest.raises(EmulatedRace, match=match):
            run(name)
