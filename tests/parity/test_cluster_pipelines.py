"""CTAs of a cluster that feed each other: by pushes, sums and stores."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from parity.test_tiles import COMBINE

from tmaasync import Kernel, ReduceOp, emulate

PUSH = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kStages = 2, kThreads = 64;
using State = PipelineState<kStages>;

struct SharedMemory {
    __align__(16) u32 inbox[kStages][kThreads];
    __align__(16) u32 outbox[kStages][kThreads];
    SharedMemBarrier full[kStages];   // the left neighbour's push has landed
    SharedMemBarrier taken[kStages];  // the right neighbour has read what we pushed
};
extern "C" __device__ const int ring_shared_bytes = sizeof(SharedMemory);

__device__ void open(SharedMemory& shared) {
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            shared.full[stage].init(1);
            shared.taken[stage].init(kThreads);
        }
        fence_barrier_init();
    }
    // No CTA may reach into a peer whose barriers are not there yet.
    cluster_sync();
}

// Every writer fences, then all meet, then one pushes.
__device__ void push(SharedMemory& shared, u32 stage, u32 value, u32 right) {
    shared.outbox[stage][threadIdx.x] = value;
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x != 0) return;
    const u32 bytes = sizeof(shared.outbox[stage]);
    auto& full = shared.full[stage];
    full.arrive_and_expect_bytes(bytes, right);
    tma_store_cluster(shared.inbox[stage], full, shared.outbox[stage], bytes, right);
}

// Each thread hands its value to the same thread of the CTA to its right, again and again.
extern "C" __global__ void ring(u32* values, int turns) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 rank = block_rank_in_cluster(), ctas = blocks_in_cluster();
    const u32 right = (rank + 1) % ctas, left = (rank + ctas - 1) % ctas;
    u32 value = values[rank * kThreads + threadIdx.x];
    open(shared);
    auto out = State::for_producer();
    auto in = State::for_consumer();
    for (int turn = 0; turn < turns; ++turn, out.step(), in.step()) {
        shared.taken[out.index].wait_acquire<Scope::kCluster>(out.phase);
        push(shared, out.index, 3 * value + rank, right);
        shared.full[in.index].wait_acquire<Scope::kCluster>(in.phase);
        value = shared.inbox[in.index][threadIdx.x];
        shared.taken[in.index].arrive_cluster(left);
    }
    values[rank * kThreads + threadIdx.x] = value;
    // A peer may still arrive here, and TMA may still read what we pushed.
    cluster_sync();
}
"""


@functools.cache
def _ring() -> Kernel:
    return Kernel(PUSH, "ring")


def is_device(backend: Any) -> bool:
    return type(backend).__name__ == "Cuda"


def handed_on(values: Any, turns: int) -> Any:
    """What the ring leaves, in plain NumPy."""
    ranks = np.arange(len(values), dtype=np.uint32)[:, None]
    for _ in range(turns):
        values = np.roll(3 * values + ranks, 1, axis=0)
    return values


def pushed(backend: Any, ctas: int, turns: int) -> tuple[Any, Any]:
    """What the ring left, and what it should have."""
    values = np.random.default_rng(ctas).integers(0, 2**32, (ctas, 64), np.uint32)
    given = backend.array(values)
    _ring()(ctas, 64, (given, turns), cluster=ctas)
    return backend.host(given), handed_on(values, turns)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ctas", [2, 4, 8])
def test_values_pushed_round_a_ring(backend: Any, ctas: int) -> None:
    got, wanted = pushed(backend, ctas, 20_000 if is_device(backend) else 9)

    assert np.array_equal(got, wanted)


class _Host:
    def array(self, host: Any) -> Any:
        return host.copy()

    def host(self, array: Any) -> Any:
        return array


SEEDED: tuple[Any, ...] = ("random", "adversarial")


def test_the_ring_is_silent_in_any_order() -> None:
    for policy, seed in itertools.product(SEEDED, range(2)):
        with emulate.scheduled(policy, seed=seed):
            got, wanted = pushed(_Host(), 3, 4)

        assert np.array_equal(got, wanted)


# --- many CTAs into one ---------------------------------------------------------------------------

GATHER = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kBytes = 1024, kOps = 8, kTypes = 5;

struct SharedMemory {
    __align__(16) unsigned char given[kBytes];
    __align__(16) unsigned char result[kBytes];
    SharedMemBarrier full;
};
extern "C" __device__ const int gather_shared_bytes = sizeof(SharedMemory);

template <int kNumber = 0>
__device__ void reduce(int number, SharedMemory& shared) {
    if constexpr (kNumber < kOps * kTypes) {
        constexpr auto kOp = static_cast<ReduceOp>(kNumber / kTypes);
        constexpr auto kType = static_cast<ElementType>(kNumber % kTypes);
        if constexpr (ptx::reduces_in_shared(kOp, kType)) {
            if (number == kNumber) {
                tma_reduce_cluster<kOp, kType>(shared.result, shared.full, shared.given, kBytes, 0);
            }
        }
        reduce<kNumber + 1>(number, shared);
    }
}

// The CTAs of the mask combine what they hold into the first one's result, all at once.
extern "C" __global__ void gather(
    const unsigned char* given, unsigned char* result, int number, u32 mask
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 rank = block_rank_in_cluster();
    for (int i = threadIdx.x; i < kBytes; i += blockDim.x) {
        shared.given[i] = given[rank * kBytes + i];
        shared.result[i] = result[i];
    }
    fence_async_view_proxy();
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
        if (rank == 0) shared.full.expect_bytes(__popc(mask) * kBytes);
    }
    cluster_sync();
    if (threadIdx.x == 0 && mask >> rank & 1) reduce(number, shared);
    if (rank == 0) {
        shared.full.wait_acquire<Scope::kCluster>(0);
        for (int i = threadIdx.x; i < kBytes; i += blockDim.x) result[i] = shared.result[i];
    }
    cluster_sync();
}
"""
COUNTING = (ReduceOp.INC, ReduceOp.DEC)
SHARED_REDUCTIONS = {
    ("uint32", 2): tuple(ReduceOp),
    ("int32", 3): tuple(op for op in ReduceOp if op not in COUNTING),
    ("uint64", 4): (ReduceOp.ADD,),
}


@functools.cache
def _gather() -> Kernel:
    return Kernel(GATHER, "gather")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "code"), SHARED_REDUCTIONS, ids=str)
def test_reductions_into_the_shared_memory_of_one_cta(backend: Any, name: str, code: int) -> None:
    kind, ctas = np.dtype(name), 4
    rng = np.random.default_rng(code)
    limits = np.iinfo(kind)
    for op, turn in itertools.product(SHARED_REDUCTIONS[name, code], range(3)):
        # Counting depends on the order.
        mask = 1 << (turn + 1) if op in COUNTING else int(rng.integers(1, 1 << ctas))
        high = 8 if op in COUNTING else limits.max
        low = 0 if op in COUNTING else limits.min
        given = rng.integers(low, high, (ctas, 1024 // kind.itemsize), kind)
        result = rng.integers(low, high, 1024 // kind.itemsize, kind)
        held = backend.array(result.view(np.uint8))
        number = int(op) * 5 + code

        arguments = (backend.array(given.view(np.uint8)), held, number, mask)
        _gather()(ctas, 64, arguments, cluster=ctas)

        for rank in range(ctas):
            if mask >> rank & 1:
                result = COMBINE[op](result, given[rank])
        assert np.array_equal(backend.host(held).view(kind), result), (op, mask)


# --- ordinary stores into a peer ------------------------------------------------------------------

TRADE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    u32 inbox[64];
    SharedMemBarrier full;
};
extern "C" __device__ const int trade_shared_bytes = sizeof(SharedMemory);

// Each thread writes its value into the next CTA, and reads it back from there.
extern "C" __global__ void trade(const u32* values, u32* received, u32* echoed) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 rank = block_rank_in_cluster(), right = (rank + 1) % blocks_in_cluster();
    const u32 index = rank * 64 + threadIdx.x;
    if (threadIdx.x == 0) {
        shared.full.init(64);
        fence_barrier_init();
    }
    cluster_sync();
    u32* inbox = map_shared_rank(shared.inbox, right);
    inbox[threadIdx.x] = values[index];
    shared.full.arrive_cluster(right);
    shared.full.wait_acquire<Scope::kCluster>(0);
    received[index] = shared.inbox[63 - threadIdx.x];
    echoed[index] = inbox[threadIdx.x];
    cluster_sync();
}
"""


@functools.cache
def _trade() -> Kernel:
    return Kernel(TRADE, "trade")


def traded(backend: Any, ctas: int) -> tuple[Any, Any, Any]:
    values = np.random.default_rng(ctas).integers(0, 2**32, (ctas, 64), np.uint32)
    received, echoed = (backend.array(np.zeros_like(values)) for _ in range(2))
    _trade()(ctas, 64, (backend.array(values), received, echoed), cluster=ctas)
    return values, backend.host(received), backend.host(echoed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ctas", [1, 2, 5, 8])
def test_threads_store_into_the_next_cta(backend: Any, ctas: int) -> None:
    values, received, echoed = traded(backend, ctas)

    assert np.array_equal(received, np.roll(values, 1, axis=0)[:, ::-1])
    assert np.array_equal(echoed, values)
