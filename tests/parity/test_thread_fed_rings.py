"""Rings that threads fill: rows gathered by cp.async, converted by stores, and read by wgmma."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from parity.backends import Cuda, Emulate
from planted_choices import choosing

from tmaasync import Kernel, Swizzle, create_tma_tile, emulate

GATHER = """
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/shared.cuh>

using namespace tmaasync;

constexpr int kRow = 96;

struct Stage {
    float row[kRow];
    char name;  // padding after it is nobody's
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<CONSUMERS>, ProducerThreads<THREADS>> ring;
};
extern "C" __device__ const int gather_shared_bytes = sizeof(SharedMemory);

// Rows that start anywhere, which TMA cannot load.
__device__ void copy(SharedMemory& shared, const float* source, const int* starts, int rows) {
    auto producer = shared.ring.thread_producer();
    for (auto stage : producer.produce(rows)) {
        const float* row = source + starts[stage.iteration()];
        for (int i = threadIdx.x; i < kRow; i += THREADS) cp_async_gs<4>(&stage->row[i], row + i);
    }
}

__device__ void convert(SharedMemory& shared, const float* source, const int* starts, int rows) {
    auto producer = shared.ring.thread_producer<Writes::kStores>();
    for (int row = 0; row < rows; ++row) {
        while (!producer.can_acquire()) {}
        auto stage = producer.acquire();
        for (int i = threadIdx.x; i < kRow; i += THREADS) {
            stage->row[i] = source[starts[row] + i];
        }
        if (row % 2) stage.commit();
    }
}

extern "C" __global__ void gather(const float* source, const int* starts, int rows, float* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.ring.init();
    __syncthreads();
    if (threadIdx.x < THREADS) {
        if (COPIES) return copy(shared, source, starts, rows);
        return convert(shared, source, starts, rows);
    }
    const int first = threadIdx.x - (THREADS + 31) / 32 * 32;
    if (first < 0) return;
    auto consumer = shared.ring.consumer();
    for (auto stage : consumer.consume(rows)) {
        for (int i = first; i < kRow; i += 32 * CONSUMERS) {
            out[stage.iteration() * kRow + i] = 2 * stage->row[kRow - 1 - i];
        }
    }
}
"""
CONSUMERS = 2
SEEDED: tuple[Any, ...] = ("random", "adversarial")


@choosing
def gather_kernel(source: str, copies: bool, threads: int, stages: int, debug: bool) -> Kernel:
    constants = {"STAGES": stages, "CONSUMERS": CONSUMERS, "THREADS": threads, "COPIES": copies}
    return Kernel(source, "gather", constants=constants, debug=debug)


def gathered(
    backend: Any,
    source: str = GATHER,
    *,
    copies: bool,
    threads: int,
    stages: int = 3,
    debug: bool = False,
) -> tuple[Any, Any]:
    """Rows that came through the ring, reversed and doubled."""
    rows = 2000 if isinstance(backend, Cuda) else 11
    rng = np.random.default_rng(threads)
    array = rng.random(5000, np.float32)
    starts = rng.integers(0, len(array) - 96, rows).astype(np.int32)
    out = backend.array(np.full((rows, 96), np.nan, np.float32))
    kernel = gather_kernel(source, copies, threads, stages, debug)
    block = (threads + 31) // 32 * 32 + 32 * CONSUMERS
    kernel(1, block, (backend.array(array), backend.array(starts), rows, out))
    return backend.host(out), 2 * array[starts[:, None] + np.arange(96)[::-1]]


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3, 5, 8)
@pytest.mark.parametrize("copies", [True, False], ids=["cp.async", "stores"])
@pytest.mark.parametrize(("threads", "stages"), [(1, 2), (20, 3), (32, 1), (64, 3), (256, 4)])
def test_rows_gathered_by_threads(backend: Any, copies: bool, threads: int, stages: int) -> None:
    got, wanted = gathered(backend, copies=copies, threads=threads, stages=stages)

    assert np.array_equal(got, wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("copies", [True, False], ids=["cp.async", "stores"])
def test_the_gather_is_right_in_any_order(copies: bool) -> None:
    for policy, seed in itertools.product(SEEDED, range(2)):
        with emulate.scheduled(policy, seed=seed):
            got, wanted = gathered(Emulate(), copies=copies, threads=40)

        assert np.array_equal(got, wanted)


# --- a GEMM: threads gather rows of A, one of them loads B with TMA -------------------------------

GEMM = """
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1), kThreads = 128;
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory {
    Ring<Stage, 3, ConsumerWarps<4>, ProducerThreads<kThreads>> ring;
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

__device__ void load(
    SharedMemory& shared, const float16* a, const int* rows, const BTile& b, int k
) {
    auto producer = shared.ring.thread_producer();
    const bool leads = threadIdx.x == 0;
    for (auto stage : producer.produce(k / kK)) {
        const int first = stage.iteration() * kK;
        if (leads) b.async_copy(stage->b, stage.expect(BTile::kBytes), {first, 0});
        for (int chunk = threadIdx.x; chunk < kM * kK / 8; chunk += kThreads) {
            const int row = chunk / (kK / 8), column = chunk % (kK / 8) * 8;
            cp_async_gs<16>(
                stage->a.bytes + OperandA::offset_bytes(row, column),
                a + static_cast<i64>(rows[row]) * k + first + column
            );
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) gemm(
    const float16* a, const int* rows, const __grid_constant__ BTile b, float* c, int k
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.ring.init();
    __syncthreads();
    if (warpgroup_index() == 0) return load(shared, a, rows, b, k);

    float accumulators[1][1][kN / 2];
    auto consumer = shared.ring.consumer<Proxy::kAsync>();
    for (auto stage : consumer.consume(k / kK)) {
        wgmma<OperandA, OperandB>(accumulators, stage->a, stage->b, stage.iteration() > 0);
    }
    for (int i = 0; i < kN / 2; ++i) {
        const int row = accumulator_row(thread_in_warpgroup(), i);
        c[row * kN + accumulator_column(thread_in_warpgroup(), i)] = accumulators[0][0][i];
    }
}
"""


@choosing
def gemm_kernel(source: str, a: str, b: str) -> Kernel:
    return Kernel(source, "gemm", types={"ATile": a, "BTile": b})


def multiplied(backend: Any, source: str = GEMM) -> tuple[Any, Any]:
    """A[rows] B^T from the ring, and from NumPy; small integers, so that every sum is exact."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 448)).astype(np.float16) for rows in (200, 32))
    rows = rng.integers(0, len(a), 64).astype(np.int32)
    given = [backend.array(array) for array in (a, b)]
    tiles = [
        create_tma_tile(array, (sides, 64), swizzle=Swizzle.B128)
        for array, sides in zip(given, (64, 32), strict=True)
    ]
    c = backend.array(np.full((64, 32), np.nan, np.float32))
    kernel = gemm_kernel(source, *(tile.cuda_type for tile in tiles))
    kernel(1, 256, (given[0], backend.array(rows), tiles[1], c, a.shape[1]))
    return backend.host(c), a[rows].astype(np.float32) @ b.astype(np.float32).T


def test_a_gemm_of_gathered_rows(backend: Any) -> None:
    got, wanted = multiplied(backend)

    assert np.array_equal(got, wanted)


def test_the_gemm_of_gathered_rows_is_right_in_any_order() -> None:
    for policy, seed in itertools.product(SEEDED, range(2)):
        with emulate.scheduled(policy, seed=seed):
            got, wanted = multiplied(Emulate())

        assert np.array_equal(got, wanted)
