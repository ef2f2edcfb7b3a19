"""cp.async in the emulator: races and faults are reported, and sound kernels are not."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

# One build for all defects: each is a value of `defect`.
EXCHANGE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// In the order of DEFECTS.
enum Defect {
    kNone, kNoWait, kWaitsForOneGroup, kNotCommitted, kNoMeeting, kReadersOverrun,
    kSourceOverwritten, kCopiedTwice, kNoProxyFence, kFenceBeforeWait, kNeverAwaited, kMisaligned,
    kBeyondTheArray, kBeyondShared, kReadsTooMuch
};

constexpr int kThreads = 64;

struct SharedMemory {
    Tile::Shared tile;
};
extern "C" __device__ const int exchange_shared_bytes = sizeof(SharedMemory);

__device__ void copy_two_groups(float* row, const float* from, Defect defect) {
    cp_async_gs<4>(row + threadIdx.x, from + threadIdx.x);
    if (defect == kCopiedTwice) cp_async_gs<4>(row + threadIdx.x, from);
    cp_async_commit();
    float* second = row + kThreads + 2 * threadIdx.x;
    const u32 bytes = defect == kReadsTooMuch ? 9 : 8;
    cp_async_gs_partial<8>(second, from + kThreads + 2 * threadIdx.x, bytes);
    if (defect == kMisaligned) cp_async_gs<8>(second, from + 1);
    if (defect == kBeyondTheArray) cp_async_gs<8>(second, from + 100'000);
    if (defect == kBeyondShared) cp_async_gs<8>(second + 20'000, from);
    if (defect != kNotCommitted) cp_async_commit();
}

__device__ void wait_for_both(Defect defect) {
    if (defect == kNoWait) return;
    if (defect == kWaitsForOneGroup) {
        cp_async_wait<1>();
    } else {
        cp_async_wait<0>();
    }
}

extern "C" __global__ void exchange(
    const __grid_constant__ Tile tile, float* source, float* out, int turns, Defect defect
) {
    auto& shared = dynamic_shared<SharedMemory>();
    float* row = shared.tile.data();
    const int thread = threadIdx.x;
    for (int turn = 0; turn < turns; ++turn) {
        copy_two_groups(row, source + turn * 3 * kThreads, defect);
        if (defect == kSourceOverwritten) source[turn * 3 * kThreads + thread] = 1;
        if (defect == kFenceBeforeWait) fence_async_view_proxy();
        if (defect == kNeverAwaited) return;
        wait_for_both(defect);
        if (defect != kNoMeeting) __syncthreads();
        const int other = kThreads - 1 - thread;
        const float* pair = row + kThreads + 2 * other;
        out[turn * kThreads + thread] = row[other] + pair[0] + pair[1];
        if (defect != kReadersOverrun) __syncthreads();
    }
    if (defect != kNoProxyFence && defect != kFenceBeforeWait) fence_async_view_proxy();
    __syncthreads();
    if (thread != 0) return;
    tile.async_store(shared.tile, {0});
    commit_group();
    wait_group<0>();
}
"""

DEFECTS: tuple[tuple[str, type[Exception], str], ...] = (
    ("none", Exception, ""),
    ("no wait", Exception, "nothing has written|the copy may not have landed"),
    ("a wait for one group of two", Exception, "nothing has written|the copy may not have landed"),
    ("a group never committed", Exception, "nothing has written|the copy may not have landed"),
    ("no meeting after the wait", Exception, "nothing has written|the copy may not have landed"),
    ("readers overrun", EmulatedRace, "before its readers are done|may not have landed"),
    (
        "the source overwritten",
        EmulatedRace,
        "a race on .*global address(.|\n)*may not have landed",
    ),
    ("copied twice", EmulatedRace, "two copies write the same bytes"),
    ("no proxy fence", EmulatedRace, "fence_async_view_proxy"),
    ("a fence before the wait", EmulatedRace, "fence_async_view_proxy"),
    ("never awaited", EmulatedFault, "copies that it issued with cp.async are in flight"),
    ("misaligned", EmulatedFault, "both must be multiples of 8"),
    ("beyond the array", EmulatedFault, "lies in none of the launch's arrays"),
    ("beyond shared memory", EmulatedFault, "cp.async reaches shared bytes"),
    ("reads more than it writes", EmulatedFault, "reads 9; it can read no more than it writes"),
)
ORDERS = [("round_robin", 0), *itertools.product(("random", "adversarial"), range(3))]


@functools.cache
def _exchange(cuda_type: str) -> Kernel:
    return Kernel(EXCHANGE, "exchange", types={"Tile": cuda_type})


def exchange(defect: int) -> tuple[Any, Any, Any]:
    turns = 3
    source = np.random.default_rng(1).random(turns * 192, np.float32)
    out, row = np.zeros((turns, 64), np.float32), np.zeros(192, np.float32)
    tile = create_tma_tile(row, (192,))
    _exchange(tile.cuda_type)(1, 64, (tile, source.copy(), out, turns, defect))
    return source, out, row


def test_copies_in_order_are_silent() -> None:
    for policy, seed in (*ORDERS, *itertools.product(("random", "adversarial"), range(3, 20))):
        with scheduled(policy, seed=seed):  # type: ignore[arg-type]
            source, out, row = exchange(0)

        turns = source.reshape(-1, 192)
        pairs = turns[:, 64:].reshape(-1, 64, 2)[:, ::-1]
        assert np.array_equal(out, turns[:, 63::-1] + pairs[..., 0] + pairs[..., 1])
        assert np.array_equal(row, turns[-1])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", range(1, len(DEFECTS)), ids=lambda defect: DEFECTS[defect][0])
def test_a_defect_is_found_whatever_the_order(defect: int) -> None:
    _, kind, report = DEFECTS[defect]

    for policy, seed in ORDERS:
        with scheduled(policy, seed=seed), pytest.raises(kind) as caught:  # type: ignore[arg-type]
            exchange(defect)

        assert isinstance(caught.value, EmulatedRace | EmulatedFault), caught.value
        assert re.search(report, str(caught.value)), caught.value


COUNTED = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

__shared__ int words[64];
__shared__ SharedMemBarrier full;

enum Form { kRaises, kCounted, kCountedAndArrives, kRaisesAlone, kNobodyWaits, kReadsAtOnce };

extern "C" __global__ void counted(const int* source, int* out, u32 arrivals, Form form) {
    if (threadIdx.x == 0) {
        full.init(arrivals);
        fence_barrier_init();
    }
    __syncthreads();
    cp_async_gs<4>(&words[threadIdx.x], source + threadIdx.x);
    if (form == kRaises || form == kRaisesAlone) {
        mbarrier_cp_async_arrive(full);
    } else {
        mbarrier_cp_async_arrive_noinc(full);
    }
    if (form == kRaises || form == kCountedAndArrives) full.arrive();
    if (form == kNobodyWaits) return;
    if (form != kReadsAtOnce) full.wait(0);
    out[threadIdx.x] = words[63 - threadIdx.x];
    if (form == kReadsAtOnce) full.wait(0);
}
"""
RAISES, COUNTED_IN_INIT, COUNTED_AND_ARRIVES, RAISES_ALONE, NOBODY_WAITS, READS_AT_ONCE = range(6)


@functools.cache
def _counted() -> Kernel:
    return Kernel(COUNTED, "counted")


def counted(form: int, arrivals: int) -> Any:
    source, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    _counted()(1, 64, (source, out, arrivals, form))
    return out


def test_an_arrival_of_copies_is_counted_once() -> None:
    for (policy, seed), form in itertools.product(ORDERS, (RAISES, COUNTED_IN_INIT)):
        with scheduled(policy, seed=seed):  # type: ignore[arg-type]
            assert counted(form, 64).tolist() == list(range(64))[::-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("form", "arrivals", "kinds", "report"),
    [
        (
            COUNTED_AND_ARRIVES,
            32,
            EmulatedFault,
            "nothing has written|full gets 1 arrival in phase",
        ),
        (COUNTED_IN_INIT, 65, EmulatedDeadlock, "1 arrivals and 0 bytes are missing"),
        (RAISES_ALONE, 1, EmulatedDeadlock, "1 arrivals and 0 bytes are missing"),
        (RAISES, 2**20 - 1, EmulatedFault, "the most it can"),
        (NOBODY_WAITS, 64, EmulatedFault, "copies of cp.async are in flight that arrive on full"),
        (READS_AT_ONCE, 64, (EmulatedRace, EmulatedFault), "nothing has written|have landed"),
    ],
)
def test_a_wrong_count_is_reported(form: int, arrivals: int, kinds: Any, report: str) -> None:
    with pytest.raises(kinds, match=report):
        counted(form, arrivals)
