"""The effect of each policy on a kernel: the order of threads, and when copies land."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, Kernel, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

POLICIES: tuple[Policy, ...] = get_args(Policy)
DRAWN: tuple[Policy, ...] = ("random", "adversarial")
WARPS, TURNS = 12, 6

# Every thread of the host's kernel writes down when it ran.
ORDER = """
extern "C" __global__ void order(int* turn, int* who) {
    for (int i = 0; i < 6; ++i) {
        who[atomicAdd(turn, 1)] = threadIdx.x;
        __syncwarp();
    }
}
"""


kernel = functools.cache(Kernel)


def order(policy: Policy, seed: int) -> list[int]:
    """Return the thread that took each turn."""
    turn, who = np.zeros(1, np.int32), np.zeros(32 * WARPS * TURNS, np.int32)
    with scheduled(policy, seed=seed):
        kernel(ORDER, "order")(1, 32 * WARPS, (turn, who))
    assert turn[0] == who.size
    return who.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_replays_the_same_order_of_events(policy: Policy) -> None:
    for seed in range(2):
        assert order(policy, seed) == order(policy, seed)


def test_an_adversary_starves_a_warp_and_lets_another_one_run_ahead() -> None:
    last, first = set(), set()

    for seed in range(40):
        warps = [thread // 32 for thread in order("adversarial", seed)]
        last |= {warp for warp in range(WARPS) if set(warps[-32 * TURNS :]) == {warp}}
        first |= {warp for warp in range(WARPS) if set(warps[: 32 * TURNS]) == {warp}}

    assert len(last) >= 4
    assert len(first) >= 4


# --- copies -------------------------------------------------------------------------------------

LANDING = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    Tile::Shared tiles[3];
    SharedMemBarrier full[3];
};
extern "C" __device__ const int landing_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void landing(const __grid_constant__ Tile tile, int* landed) {
    auto& shared = dynamic_shared<SharedMemory>();
    for (int i = 0; i < 3; ++i) shared.full[i].init(1);
    fence_barrier_init();
    for (int i = 0; i < 3; ++i) {
        shared.full[i].expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tiles[i], shared.full[i], {0, 0});
    }
    int next = 0;
    bool seen[3] = {};
    while (next < 3) {
        for (int i = 0; i < 3; ++i) {
            if (seen[i] || !shared.full[i].test_wait(0)) continue;
            seen[i] = true;
            landed[next++] = i;
        }
    }
}
"""


def landed(policy: Policy, seed: int) -> tuple[int, ...]:
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    order = np.full(3, -1, np.int32)
    with scheduled(policy, seed=seed):
        Kernel(LANDING, "landing", types={"Tile": tile})(1, 1, (tile, order))
    return tuple(order.tolist())


def test_copies_land_in_any_order() -> None:
    assert landed("round_robin", 0) == (0, 1, 2)
    for policy in DRAWN:
        assert len({landed(policy, seed) for seed in range(40)}) >= 3, policy


LATE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory { Tile::Shared tile; };
extern "C" __device__ const int late_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void late(
    const __grid_constant__ Tile tile, const float* target, float* seen, int waits
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 32 * 32; ++i) shared.tile.data()[i] = 1;
        fence_async_view_proxy();
        tile.async_store(shared.tile, {0, 0});
        commit_group();
        if (waits) wait_group<0>(); else wait_group_read<0>();
    }
    __syncthreads();
    if (threadIdx.x == 1) *seen = *target;
}
"""


@pytest.mark.parametrize("waits", [0, 1])
def test_a_store_is_written_as_late_as_its_thread_allows(waits: int) -> None:
    found = set()
    for seed in range(5):
        array, seen = np.zeros((32, 32), np.float32), np.full(1, -1, np.float32)
        tile = create_tma_tile(array, (32, 32))
        with scheduled("adversarial", seed=seed, races=False):
            Kernel(LATE, "late", types={"Tile": tile})(1, 32, (tile, array, seen, waits))
        assert (array == 1).all()
        found.add(seen[0].item())

    assert found == {waits}


# --- threads that ask again and again -------------------------------------------------------------

POLLS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
    int flag, lock;
};
extern "C" __device__ const int polls_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void polls(const __grid_constant__ Tile tile, int* count, int how, int ends) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.flag = shared.lock = 0;
    }
    __syncthreads();
    if (threadIdx.x == 63) {
        shared.full.expect_bytes(ends ? Tile::kBytes : Tile::kBytes + 16);
        tile.async_copy(shared.tile, shared.full, {0, 0});
        shared.full.wait(0);
        atomicExch(&shared.flag, ends);
    }
    if (how == 0) while (!shared.full.test_wait(0)) {}
    if (how == 1) while (!shared.full.test_wait(0)) __syncwarp();
    if (how == 2) while (!__all_sync(0xffffffff, shared.full.test_wait(0))) {}
    if (how == 3) while (atomicAdd(&shared.flag, 0) == 0) {}
    if (how == 4) while (*(volatile int*)&shared.flag == 0) __nanosleep(20);
    if (how == 5) {
        while (atomicCAS(&shared.lock, 0, 1) != 0) {}
        __threadfence();
        *count = *count + 1;
        __threadfence();
        if (ends) atomicExch(&shared.lock, 0);
    }
    if (how == 6) while (atomicAdd(count, 1) >= 0 && *(volatile int*)&shared.flag == 0) {}
}
"""
HOW = {
    "test_wait": 0,
    "test_wait and __syncwarp": 1,
    "test_wait and a vote": 2,
    "an atomic": 3,
    "__nanosleep": 4,
    "a spin lock": 5,
    "an atomic that changes": 6,
}


def poll(how: str, *, ends: bool) -> int:
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    count = np.zeros(1, np.int32)
    Kernel(POLLS, "polls", types={"Tile": tile})(1, 64, (tile, count, HOW[how], int(ends)))
    return int(count[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_polls_lets_others_run(policy: Policy, how: str) -> None:
    for seed in range(2):
        with scheduled(policy, seed=seed):
            count = poll(how, ends=True)
        assert count == 64 or how != "a spin lock"


@pytest.mark.parametrize(
    ("how", "policy"), [*zip(("test_wait", "an atomic", "a spin lock"), POLICIES, strict=True)]
)
def test_polling_for_what_never_comes_is_a_deadlock(policy: Policy, how: str) -> None:
    with scheduled(policy, seed=1), pytest.raises(EmulatedDeadlock) as caught:
        poll(how, ends=False)

    waits = {thread for wait in caught.value.waits for thread in wait.threads}
    assert 63 in waits
    assert len(waits) >= 2
    if how == "test_wait":
        asking = [wait for wait in caught.value.waits if "test_wait" in wait.instruction]
        assert [wait.missing_bytes for wait in asking] == [16]


BETWEEN = """
extern "C" __global__ void between(int* flags, int waits_for) {
    if (threadIdx.x != 0) return;
    const int other = waits_for < 0 ? (int)blockIdx.x - 1 : waits_for;
    long sum = 0;
    for (volatile long i = 0; i < 200000 && waits_for < 0; ++i) sum += i;
    if (other >= 0) while (atomicAdd(&flags[other], 0) == 0) {}
    atomicExch(&flags[blockIdx.x], 1);
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [1, 4])
def test_a_cluster_waits_for_another_one_as_long_as_that_works(
    policy: Policy, workers: int
) -> None:
    flags = np.zeros(16, np.int32)

    with scheduled(policy, workers=workers):
        Kernel(BETWEEN, "between")(flags.size, 32, (flags, -1))

    assert flags.all()


def test_clusters_that_wait_for_each_other_are_a_deadlock() -> None:
    flags: Any = np.zeros(16, np.int32)

    with scheduled(workers=4), pytest.raises(EmulatedDeadlock, match="atomic"):
        Kernel(BETWEEN, "between")(8, 32, (flags, 15))
