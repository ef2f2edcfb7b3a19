"""A kernel that would hang on the chip ends here; the report names every wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full, empty;
};
extern "C" __device__ const int pass_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void pass(
    const __grid_constant__ Tile source, unsigned arriving
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        shared.empty.init(blockDim.x);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.tile, shared.full, {0, 0});
    }
    shared.full.wait(0);
    if (threadIdx.x < arriving) shared.empty.arrive();
    shared.empty.wait(0);
}
"""
TILE_BYTES = 32 * 32 * 4
FULL, EMPTY = TILE_BYTES, TILE_BYTES + 8
THREADS = 64


def run(arriving: int = THREADS) -> None:
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    kernel = Kernel(SOURCE, "pass", types={"Tile": tile})
    kernel(2, THREADS, (tile, arriving))


def deadlock(arriving: int) -> EmulatedDeadlock:
    with pytest.raises(EmulatedDeadlock) as caught:
        run(arriving)
    return caught.value


@pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])
def test_a_missing_arrival_names_the_barrier_and_who_waits(policy: Any) -> None:
    with scheduled(policy):
        found = deadlock(THREADS - 1)

    (wait,) = found.waits
    assert (wait.barrier_offset, wait.phase) == (EMPTY, 0)
    assert (wait.missing_arrivals, wait.missing_bytes) == (1, 0)
    assert wait.threads == tuple(range(THREADS))
    assert str(found) == (
        "pass: every thread waits, and nothing is in flight:\n"
        "  block (0, 0, 0), threads 0-63 at kernel.cu:27: mbarrier.try_wait.parity on empty, "
        "phase 0: 1 arrivals and 0 bytes are missing; only warps 0-1 arrived, with 63 of the 64 "
        "arrivals that init() counts"
    )


def test_the_next_run_after_a_deadlock_works() -> None:
    deadlock(0)

    run()


OF_PEERS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void signal(unsigned rank_of_barrier) {
    __shared__ SharedMemBarrier ready;
    if (threadIdx.x == 0) {
        ready.init(32);
        fence_barrier_init();
    }
    cluster_sync();
    if (block_rank_in_cluster() == 0) ready.arrive_cluster(rank_of_barrier);
    if (block_rank_in_cluster() == 1) ready.wait_acquire<Scope::kCluster>(0);
    cluster_sync();
}
"""


def test_arrivals_on_the_barrier_of_another_cta_are_named() -> None:
    kernel = Kernel(OF_PEERS, "signal")
    kernel(2, 32, (np.uint32(1),), cluster=2)
    with pytest.raises(EmulatedDeadlock) as caught:
        kernel(2, 32, (np.uint32(0),), cluster=2)
    assert (
        "ready, phase 0: 32 arrivals and 0 bytes are missing; nothing has arrived on it; warp 0 of "
        "block (0, 0, 0) arrived on the one of block (0, 0, 0), for which nobody waits: arrive on "
        "the waiting CTA's"
    ) in str(caught.value)


# Blocks of even and of odd number wait for each other's flag.
TWO_FLAGS = Kernel(
    """
extern "C" __global__ void two_flags(int* flags) {
    if (threadIdx.x > 0) return;
    const int own = blockIdx.x % 2;
    while (atomicAdd(&flags[1 - own], 0) == 0) {}
    atomicExch(&flags[own], 1);
}
""",
    "two_flags",
)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("blocks", [2, 60])
def test_every_block_that_spins_is_listed(blocks: int, workers: int) -> None:
    with (
        scheduled(workers=workers, races=False),
        pytest.raises(EmulatedDeadlock) as caught,
    ):
        TWO_FLAGS(blocks, 32, (np.zeros(2, np.int32),))

    waits = caught.value.waits
    assert [wait.block for wait in waits] == [(block, 0, 0) for block in range(blocks)]
    assert {wait.threads for wait in waits} == {(0,)}
    assert all(f"flags[{1 - wait.block[0] % 2}]" in wait.instruction for wait in waits)


def test_of_many_blocks_those_that_wait_alike_share_a_line() -> None:
    with pytest.raises(EmulatedDeadlock) as caught:
        TWO_FLAGS(60, 32, (np.zeros(2, np.int32),))

    _, of_even, of_odd = str(caught.value).splitlines()
    assert "block (0, 0, 0), thread 0" in of_even
    assert of_even.endswith("blocks (2, 0, 0), (4, 0, 0), (6, 0, 0), (8, 0, 0) and 25 more")
    assert of_odd.endswith("blocks (3, 0, 0), (5, 0, 0), (7, 0, 0), (9, 0, 0) and 25 more")
