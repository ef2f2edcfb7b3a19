"""A block reads again what another overwrote: without an acquire, L1 may hold the old value."""

from __future__ import annotations

import numpy as np
import pytest

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

__device__ int polled(int* flag) {
    POLL
}
__device__ void post(int* flag, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

extern "C" __global__ void ring(
    const __grid_constant__ Tile tile, float* slot, int* full, int* empty, float* sum, int rounds
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.full.init(1);
    fence_barrier_init();
    __syncthreads();
    float total = 0;
    for (int round = 1; round <= rounds; ++round) {
        if (blockIdx.x == 0) {
            if (threadIdx.x == 0) while (polled(empty) != round - 1) __nanosleep(20);
            __syncthreads();
            slot[threadIdx.x] = round;
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) post(full, round);
        } else {
            if (threadIdx.x == 0) while (polled(full) != round) __nanosleep(20);
            __syncthreads();
            READ
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


def run(poll: str, read: str, rounds: int) -> float:
    slot, total = np.zeros((8, 8), np.float32), np.full(64, np.nan, np.float32)
    full, empty = (np.zeros(1, np.int32) for _ in range(2))
    tile = create_tma_tile(slot, (8, 8))
    text = SOURCE.replace("POLL", poll).replace("READ", read)
    Kernel(text, "ring", types={"Tile": tile})(2, 64, (tile, slot, full, empty, total, rounds))
    assert (total == total[0]).all()
    return float(total[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SOUND)
def test_reads_after_an_acquire_or_past_l1_are_no_race(name: str) -> None:
    for policy in ("round_robin", "random", "adversarial"):
        with scheduled(policy, races=True):
            assert run(*SOUND[name]) == sum(range(SOUND[name][2] + 1))


@pytest.mark.parametrize("poll", [VOLATILE, ATOMIC, RELAXED])
def test_reads_again_after_a_relaxed_poll_are_a_race_with_its_remedy(poll: str) -> None:
    for policy in ("round_robin", "random", "adversarial"):
        with (
            scheduled(policy, races=True),
            pytest.raises(
                EmulatedRace,
                match=(
                    r"a race on tile\[\d\]\[\d\] .*:\n"
                    r"  block \(0, 0, 0\), thread \d+ at kernel.cu:\d+: ordinary write\n"
                    r"  block \(1, 0, 0\), thread \d+ at kernel.cu:\d+: ordinary read\n"
                    r".*L1 .*__threadfence\(\) after the poll"
                ),
            ),
        ):
            run(poll, READ, 4)
