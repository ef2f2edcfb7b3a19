"""A ring buffer that owns its stages: copies, GEMMs and multicast through it.

`test_structured_misuses.py` plants misuses in these programs.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from parity.backends import Cuda, Emulate
from planted_choices import choosing

from tmaasync import Kernel, Swizzle, create_tma_tile, emulate, trace

COPY = """
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/shared.cuh>

using namespace tmaasync;

constexpr int kStages = 3, kConsumerWarps = 2;

struct Stage {
    Tile::Shared tile;
};
struct SharedMemory {
    Ring<Stage, kStages, ConsumerWarps<kConsumerWarps>> ring;
};
extern "C" __device__ const int copy_shared_bytes = sizeof(SharedMemory);

// The first tile by itself, then the others: the producer goes on where it was.
__device__ void produce(SharedMemory& shared, const Tile& tile, int tiles) {
    auto producer = shared.ring.producer();
    {
        if (!producer.can_acquire()) __trap();  // all stages are empty
        const auto stage = producer.acquire();
        tile.async_copy(stage->tile, stage.full(), {0, 0});
    }
    for (auto stage : producer.produce(tiles - 1)) {
        tile.async_copy(stage->tile, stage.full(), {0, (1 + stage.iteration()) * Tile::side(0)});
    }
    producer.drain();
}

// Copies half of a stage.
__device__ void keep(const Tile::Shared& tile, float* out, int warp) {
    for (int i = warp * 32 + lane_index(); i < Tile::kElements; i += 32 * kConsumerWarps) {
        out[i] = tile.data()[i];
    }
}

__device__ void consume(SharedMemory& shared, float* out, int tiles, int warp) {
    auto consumer = shared.ring.consumer();
    auto kept = consumer.none();
    for (auto stage : consumer.consume(tiles - 1)) {
        keep(stage->tile, out + stage.iteration() * Tile::kElements, warp);
        if (stage.iteration() == 1) kept.take(stage);
        if (stage.iteration() == 2) kept.release();
    }
    while (!consumer.can_acquire()) {}
    auto last = consumer.acquire();
    if (last.index() != (tiles - 1) % kStages) __trap();
    keep(last->tile, out + (tiles - 1) * Tile::kElements, warp);
    last.release();
}

extern "C" __global__ void copy(const __grid_constant__ Tile tile, float* out, int tiles) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.ring.init();
    __syncthreads();
    if (warp_index() == kConsumerWarps) {
        if (elect()) produce(shared, tile, tiles);
    } else {
        consume(shared, out, tiles, warp_index());
    }
}
"""
SEEDED: tuple[Any, ...] = ("random", "adversarial")
COLUMNS = 12
ROWS = 32


@choosing
def copy_kernel(source: str, cuda_type: str, debug: bool = False) -> Kernel:
    return Kernel(source, "copy", types={"Tile": cuda_type}, debug=debug)


def copied(backend: Any, rows: int, source: str = COPY, *, debug: bool = False) -> tuple[Any, Any]:
    """The tiles that came through the ring, and the array with zeros beyond its rows."""
    host = np.random.default_rng(rows).random((rows, COLUMNS), np.float32)
    tile = create_tma_tile(backend.array(host), (ROWS, COLUMNS))
    tiles = -(-rows // ROWS)
    out = backend.array(np.full((tiles * ROWS, COLUMNS), np.nan, np.float32))
    copy_kernel(source, tile.cuda_type, debug)(1, 96, (tile, out, tiles))
    return backend.host(out), np.pad(host, ((0, tiles * ROWS - rows), (0, 0)))


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3, 5, 8)
@pytest.mark.parametrize("rows", [1, 32, 33, 95, 200, 705])
@pytest.mark.parametrize("debug", [False, True], ids=["release", "debug"])
def test_tiles_copied_through_a_ring(backend: Any, rows: int, debug: bool) -> None:
    got, wanted = copied(backend, rows, debug=debug)

    assert np.array_equal(got, wanted)


def test_the_timeline_names_the_stages_of_the_ring() -> None:
    with trace.record() as kept:
        copied(Emulate(), 9 * ROWS)

    (launch,) = kept.launches
    landed = [event.barrier_name for event in launch.of(kind="load_landed")]
    assert landed == 3 * ["ring.full[0]", "ring.full[1]", "ring.full[2]"]
    waits = {(role.name, share.on) for role in launch.summary().roles for share in role.shares}
    assert {("warps 0-1", "ring.full"), ("warp 2", "ring.empty")} <= waits


def test_the_copy_is_right_in_any_order() -> None:
    rng = np.random.default_rng(0)
    for policy, seed in itertools.product(SEEDED, range(3)):
        with emulate.scheduled(policy, seed=seed):
            got, wanted = copied(Emulate(), int(rng.integers(1, 400)))

        assert np.array_equal(got, wanted)


# --- a GEMM, alone and in clusters that share tiles of B ------------------------------------------

GEMM = """
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

constexpr int kRows = 64, kConsumers = ATile::side(0) / kRows;
constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1);

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
using Operands = Ring<Stage, STAGES, ConsumerWarps<4 * kConsumers>, Multicast<CTAS>>;
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;

struct SharedMemory {
    Operands operands;
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

struct Problem {
    int m, n, k_blocks;

    // The CTAs of a cluster have neighbouring tiles along M.
    __device__ int clusters_down() const { return (m + CTAS * kM - 1) / (CTAS * kM); }
    __device__ int tiles() const { return clusters_down() * ((n + kN - 1) / kN); }
    __device__ int row(int tile) const {
        return (tile % clusters_down() * CTAS + Operands::MulticastGroup::rank()) * kM;
    }
    __device__ int column(int tile) const { return tile / clusters_down() * kN; }
};

__device__ void load_tiles(
    Operands& operands, const ATile& a, const BTile& b, const Problem& problem
) {
    auto producer = operands.producer();
    for (int tile = blockIdx.x / CTAS; tile < problem.tiles(); tile += gridDim.x / CTAS) {
        for (auto stage : producer.produce(problem.k_blocks)) {
            const int k = stage.iteration() * kK;
            a.async_copy(stage->a, stage.full(), {k, problem.row(tile)});
            stage.async_multicast_load(b, stage->b, {k, problem.column(tile)});
        }
    }
    producer.drain();
}

__device__ void store(
    const float (&accumulators)[kN / 2], float* c, const Problem& at, int row, int column
) {
    for (int i = 0; i < kN / 2; ++i) {
        const int y = row + accumulator_row(thread_in_warpgroup(), i);
        const int x = column + accumulator_column(thread_in_warpgroup(), i);
        if (y < at.m && x < at.n) c[y * at.n + x] = accumulators[i];
    }
}

// One group of wgmma stays in flight: the stage before is released.
__device__ void multiply_tiles(Operands& operands, float* c, const Problem& problem) {
    const int first = warpgroup_index() * kRows;
    auto consumer = operands.consumer<Proxy::kAsync>();
    for (int tile = blockIdx.x / CTAS; tile < problem.tiles(); tile += gridDim.x / CTAS) {
        float accumulators[kN / 2];
        auto in_flight = consumer.none();
        for (auto stage : consumer.consume(problem.k_blocks)) {
            wgmma_fence_operands(accumulators);
            wgmma_fence();
            wgmma_tile<OperandA, OperandB>(
                accumulators, OperandA::descriptor(stage->a, first),
                OperandB::descriptor(stage->b, 0), stage.iteration() > 0
            );
            wgmma_commit_group();
            wgmma_wait_group<1>();
            wgmma_fence_operands(accumulators);
            in_flight.take(stage);
        }
        wgmma_wait_group<0>();
        wgmma_fence_operands(accumulators);
        in_flight.release();
        store(accumulators, c, problem, problem.row(tile) + first, problem.column(tile));
    }
}

extern "C" __global__ void __launch_bounds__(128 * (kConsumers + 1), 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    float* c,
    int m,
    int n,
    int k
) {
    auto& operands = dynamic_shared<SharedMemory>().operands;
    const Problem problem{m, n, (k + kK - 1) / kK};
    if (threadIdx.x == 0) operands.init();
    cluster_sync();
    if (warpgroup_index() == kConsumers) {
        if (warp_index() == 4 * kConsumers && elect()) {
            load_tiles(operands, a, b, problem);
        }
    } else {
        multiply_tiles(operands, c, problem);
    }
}
"""


@choosing
def gemm_kernel(source: str, a: str, b: str, stages: int, ctas: int, debug: bool) -> Kernel:
    constants = {"STAGES": stages, "CTAS": ctas}
    types = {"ATile": a, "BTile": b}
    return Kernel(source, "gemm", types=types, constants=constants, debug=debug)


def multiplied(
    backend: Any,
    shape: tuple[int, int, int],
    source: str = GEMM,
    *,
    stages: int = 3,
    ctas: int = 1,
    clusters: int = 2,
    alone: bool = False,
) -> tuple[Any, Any]:
    """A B^T from the ring, and in float64 from NumPy; ``alone`` is a debug build, no cluster."""
    m, n, k = shape
    rng = np.random.default_rng(m)
    # Small integers: every sum is exact.
    a, b = (rng.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (m, n))
    given = [backend.array(operand) for operand in (a, b)]
    a_tile = create_tma_tile(given[0], (128, 64), swizzle=Swizzle.B128)
    # Two boxes: each of two CTAs loads one for both.
    b_tile = create_tma_tile(given[1], (64, 64), swizzle=Swizzle.B128, box_shape=(32, 64))
    c = backend.array(np.full((m, n), np.nan, np.float32))
    kernel = gemm_kernel(source, a_tile.cuda_type, b_tile.cuda_type, stages, ctas, alone)
    arguments = (a_tile, b_tile, c, m, n, k)
    kernel(clusters * ctas, 384, arguments, cluster=None if alone else ctas)
    return backend.host(c), a.astype(np.float64) @ b.astype(np.float64).T


SHAPES = ((1, 1, 8), (129, 65, 72), (300, 200, 328), (520, 72, 1032))


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(1, 4, 11, 13)
@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stages", [2, 3])
def test_a_gemm_through_a_ring(
    backend: Any, ctas: int, shape: tuple[int, int, int], stages: int
) -> None:
    clusters = 40 if isinstance(backend, Cuda) else 2

    got, wanted = multiplied(backend, shape, stages=stages, ctas=ctas, clusters=clusters)

    assert np.array_equal(got, wanted)


def test_the_multicast_gemm_is_right_in_any_order() -> None:
    rng = np.random.default_rng(0)
    for policy, seed in itertools.product(SEEDED, range(2)):
        m, n, k = (int(rng.integers(1, limit)) for limit in (500, 200, 50))
        with emulate.scheduled(policy, seed=seed):
            got, wanted = multiplied(Emulate(), (m, n, 8 * k), ctas=2)

        assert np.array_equal(got, wanted)
