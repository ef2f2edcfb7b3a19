"""A ring buffer that owns its stages: copies, GEMMs and multicast through it, and misuses."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import numpy as np
import pytest
from parity.backends import Cuda, Emulate

from tmaasync import (
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    Kernel,
    Swizzle,
    create_tma_tile,
    emulate,
    trace,
)

# One build for all defects: each is a value of `defect`.
COPY = """
#include <tmaasync/ring.cuh>
#include <tmaasync/shared.cuh>

using namespace tmaasync;

// In the order of COPY_DEFECTS.
enum Defect {
    kNone, kMoreBytes, kNoLoad, kOtherStage, kEarlyExit, kAbsentWarp, kAsyncReader,
    kReadAfterRelease, kTwoReleases, kTakenTwice, kNoInit, kNoSync, kSecondProducer, kUnreleased
};

constexpr int kStages = 3, kConsumerWarps = 2;

struct Stage {
    Tile::Shared tile;
};
struct SharedMemory {
    Ring<Stage, kStages, ConsumerWarps<kConsumerWarps>> ring;
};
extern "C" __device__ const int copy_shared_bytes = sizeof(SharedMemory);

__device__ void load(
    const ProducerStage<decltype(SharedMemory::ring)>& stage,
    SharedMemory& shared,
    const Tile& tile,
    int index,
    bool planted,
    Defect defect
) {
    if (planted && defect == kNoLoad) return;
    auto& full = planted && defect == kOtherStage ? shared.ring.full[2] : stage.full();
    tile.async_copy(stage->tile, full, {0, index * Tile::side(0)});
}

// The first tile by itself, then the others: the producer goes on where it was.
__device__ void produce(SharedMemory& shared, const Tile& tile, int tiles, Defect defect) {
    auto producer = shared.ring.producer();
    {
        if (!producer.can_acquire()) __trap();  // all stages are empty
        const auto stage = producer.acquire(Tile::kBytes + (defect == kMoreBytes ? 512 : 0));
        load(stage, shared, tile, 0, true, defect);
    }
    if (defect == kSecondProducer) {
        auto second = shared.ring.producer();
        const auto stage = second.acquire();
        load(stage, shared, tile, 0, false, defect);
    }
    const int count = defect == kEarlyExit ? tiles - 2 : tiles - 1;
    for (auto stage : producer.produce(count)) {
        load(stage, shared, tile, 1 + stage.iteration(), false, defect);
    }
    producer.drain();
}

// Copies half of a stage.
__device__ void keep(const Tile::Shared& tile, float* out, int warp) {
    for (int i = warp * 32 + lane_index(); i < Tile::kElements; i += 32 * kConsumerWarps) {
        out[i] = tile.data()[i];
    }
}

template <Proxy kReader>
__device__ void consume(SharedMemory& shared, float* out, int tiles, int warp, Defect defect) {
    auto consumer = shared.ring.template consumer<kReader>();
    auto kept = consumer.none();
    if (defect == kAbsentWarp && warp == 1) return;
    for (auto stage : consumer.consume(tiles - 1)) {
        const bool planted = stage.iteration() == 1;
        if (planted && defect == kReadAfterRelease) stage.release();
        keep(stage->tile, out + stage.iteration() * Tile::kElements, warp);
        if (planted && defect == kTwoReleases) stage.release();
        if (planted && (defect == kTwoReleases || defect == kUnreleased)) kept.take(stage);
        if (planted && defect == kTakenTwice) {
            kept.take(stage);
            kept.take(stage);
        }
    }
    while (defect == kNone && !consumer.can_acquire()) {}
    auto last = consumer.acquire();
    if (defect == kNone && last.index() != (tiles - 1) % kStages) __trap();
    keep(last->tile, out + (tiles - 1) * Tile::kElements, warp);
    if (defect == kNone) last.release();
}

extern "C" __global__ void copy(
    const __grid_constant__ Tile tile, float* out, int tiles, Defect defect
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0 && defect != kNoInit) shared.ring.init();
    if (defect != kNoSync) __syncthreads();
    if (warp_index() == kConsumerWarps) {
        if (elect()) produce(shared, tile, tiles, defect);
    } else if (defect == kAsyncReader) {
        consume<Proxy::kAsync>(shared, out, tiles, warp_index(), defect);
    } else {
        consume<Proxy::kGeneric>(shared, out, tiles, warp_index(), defect);
    }
}
"""
SEEDED: tuple[Any, ...] = ("random", "adversarial")
COLUMNS = 12
ROWS = 32


@functools.cache
def copy_kernel(cuda_type: str, debug: bool = False) -> Kernel:
    return Kernel(COPY, "copy", types={"Tile": cuda_type}, debug=debug)


def copied(backend: Any, rows: int, defect: int = 0, debug: bool = False) -> tuple[Any, Any]:
    """The tiles that came through the ring, and the array with zeros beyond its rows."""
    host = np.random.default_rng(rows).random((rows, COLUMNS), np.float32)
    tile = create_tma_tile(backend.array(host), (ROWS, COLUMNS))
    tiles = -(-rows // ROWS)
    out = backend.array(np.full((tiles * ROWS, COLUMNS), np.nan, np.float32))
    copy_kernel(tile.cuda_type, debug)(1, 96, (tile, out, tiles, defect))
    return backend.host(out), np.pad(host, ((0, tiles * ROWS - rows), (0, 0)))


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
    for policy, seed in itertools.product(SEEDED, range(8)):
        with emulate.scheduled(policy, seed=seed):
            got, wanted = copied(Emulate(), int(rng.integers(1, 400)))

        assert np.array_equal(got, wanted)


ORDERS: tuple[tuple[Any, int], ...] = (("round_robin", 0), *itertools.product(SEEDED, range(2)))
_LOST = (EmulatedRace, EmulatedFault, EmulatedDeadlock)
COPY_DEFECTS: tuple[tuple[str, tuple[type[Exception], ...], str, bool], ...] = (
    ("none", (), "", False),
    ("more bytes than come", (EmulatedDeadlock,), r"ring\.full\[0\].* 512 bytes are", False),
    ("no load", (EmulatedDeadlock,), r"ring\.full\[0\].* 1536 bytes are", False),
    ("credits another stage", _LOST, r"ring\.full\[\d\]", False),
    ("a producer that stops early", (EmulatedDeadlock,), r"ring\.full\[2\].* 1 arrivals", False),
    ("fewer warps than declared", (EmulatedDeadlock,), r"ring\.empty\[0\].* 1 arrivals", False),
    ("ordinary reads, as if by wgmma", _LOST, r"ring\.stages", False),
    ("read after release", (EmulatedFault,), "stages held is 0", True),
    ("released twice", (EmulatedFault,), "the stage was released or taken; it must be 1", True),
    ("taken twice", (EmulatedFault,), "the stage was released or taken; it must be 1", True),
    ("no init", (EmulatedFault,), "mbarrier.init", False),
    ("no barrier after init", (EmulatedRace, EmulatedFault), "init", False),
    ("a second producer", _LOST, "ring", False),
    ("held, never released", (EmulatedDeadlock,), r"ring\.empty\[1\].* 2 arrivals", False),
)


@pytest.mark.parametrize("number", range(1, len(COPY_DEFECTS)), ids=lambda i: COPY_DEFECTS[i][0])
def test_a_misuse_of_the_ring_is_reported_whatever_the_order(number: int) -> None:
    _, kinds, report, debug = COPY_DEFECTS[number]

    for policy, seed in ORDERS:
        with emulate.scheduled(policy, seed=seed), pytest.raises(kinds) as caught:
            copied(Emulate(), 32 * 9, number, debug)

        assert re.search(report, str(caught.value)), caught.value


# --- a GEMM, alone and in clusters that share tiles of B ------------------------------------------

GEMM = """
#include <tmaasync/ring.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

// In the order of GEMM_DEFECTS.
enum Defect { kNone, kReleasedEarly, kNoDrain, kOneCtaLoads, kExpectsItsShare, kNoCluster };

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
    Operands& operands, const ATile& a, const BTile& b, const Problem& problem, Defect defect
) {
    const bool skips = defect == kOneCtaLoads && Operands::MulticastGroup::rank() == 0;
    auto producer = operands.producer();
    for (int tile = blockIdx.x / CTAS; tile < problem.tiles(); tile += gridDim.x / CTAS) {
        for (auto stage : producer.produce(problem.k_blocks)) {
            const int k = stage.iteration() * kK;
            a.async_copy(stage->a, stage.full(), {k, problem.row(tile)});
            if (!skips) stage.async_multicast_load(b, stage->b, {k, problem.column(tile)});
        }
        if (defect == kExpectsItsShare) (void)producer.acquire(Operands::kStageBytes / 2);
    }
    if (defect != kNoDrain) producer.drain();
}

__device__ void store(
    const float (&sums)[kN / 2], float* c, const Problem& at, int row, int column
) {
    for (int i = 0; i < kN / 2; ++i) {
        const int y = row + accumulator_row(thread_in_warpgroup(), i);
        const int x = column + accumulator_column(thread_in_warpgroup(), i);
        if (y < at.m && x < at.n) c[y * at.n + x] = sums[i];
    }
}

// One group of wgmma stays in flight: the stage before is released.
__device__ void multiply_tiles(
    Operands& operands, float* c, const Problem& problem, Defect defect
) {
    const int first = warpgroup_index() * kRows;
    auto consumer = operands.consumer<Proxy::kAsync>();
    for (int tile = blockIdx.x / CTAS; tile < problem.tiles(); tile += gridDim.x / CTAS) {
        float sums[kN / 2];
        auto in_flight = consumer.none();
        for (auto stage : consumer.consume(problem.k_blocks)) {
            wgmma_fence_operands(sums);
            wgmma_fence();
            wgmma_tile<OperandA, OperandB>(
                sums, OperandA::descriptor(stage->a, first), OperandB::descriptor(stage->b, 0),
                stage.iteration() > 0
            );
            wgmma_commit_group();
            if (defect != kReleasedEarly) wgmma_wait_group<1>();
            wgmma_fence_operands(sums);
            in_flight.take(stage);
        }
        wgmma_wait_group<0>();
        wgmma_fence_operands(sums);
        in_flight.release();
        store(sums, c, problem, problem.row(tile) + first, problem.column(tile));
    }
}

extern "C" __global__ void __launch_bounds__(128 * (kConsumers + 1), 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    float* c,
    int m,
    int n,
    int k,
    Defect defect
) {
    auto& operands = dynamic_shared<SharedMemory>().operands;
    const Problem problem{m, n, (k + kK - 1) / kK};
    if (threadIdx.x == 0) operands.init();
    cluster_sync();
    if (warpgroup_index() == kConsumers) {
        if (warp_index() == 4 * kConsumers && elect()) {
            load_tiles(operands, a, b, problem, defect);
        }
    } else {
        multiply_tiles(operands, c, problem, defect);
    }
}
"""


@functools.cache
def gemm_kernel(a: str, b: str, stages: int, ctas: int, debug: bool) -> Kernel:
    constants = {"STAGES": stages, "CTAS": ctas}
    types = {"ATile": a, "BTile": b}
    return Kernel(GEMM, "gemm", types=types, constants=constants, debug=debug)


GEMM_NO_CLUSTER = 5


def multiplied(
    backend: Any,
    shape: tuple[int, int, int],
    *,
    stages: int = 3,
    ctas: int = 1,
    clusters: int = 2,
    defect: int = 0,
) -> tuple[Any, Any]:
    """A B^T from the ring, and in float64 from NumPy."""
    m, n, k = shape
    rng = np.random.default_rng(m)
    # Small integers: every sum is exact.
    a, b = (rng.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (m, n))
    given = [backend.array(operand) for operand in (a, b)]
    a_tile = create_tma_tile(given[0], (128, 64), swizzle=Swizzle.B128)
    # Two boxes: each of two CTAs loads one for both.
    b_tile = create_tma_tile(given[1], (64, 64), swizzle=Swizzle.B128, box_shape=(32, 64))
    c = backend.array(np.full((m, n), np.nan, np.float32))
    alone = defect == GEMM_NO_CLUSTER
    kernel = gemm_kernel(a_tile.cuda_type, b_tile.cuda_type, stages, ctas, alone)
    arguments = (a_tile, b_tile, c, m, n, k, defect)
    kernel(clusters * ctas, 384, arguments, cluster=None if alone else ctas)
    return backend.host(c), a.astype(np.float64) @ b.astype(np.float64).T


SHAPES = ((1, 1, 8), (129, 65, 72), (300, 200, 328), (520, 72, 1032))


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
    for policy, seed in itertools.product(SEEDED, range(4)):
        m, n, k = (int(rng.integers(1, limit)) for limit in (500, 200, 50))
        with emulate.scheduled(policy, seed=seed):
            got, wanted = multiplied(Emulate(), (m, n, 8 * k), ctas=2)

        assert np.array_equal(got, wanted)


GEMM_DEFECTS: tuple[tuple[str, tuple[type[Exception], ...], str], ...] = (
    ("none", (), ""),
    ("released while wgmma reads", _LOST, r"operands\.|accumulators"),
    ("no drain", (EmulatedFault,), "cluster_sync"),
    ("one CTA does not load", (EmulatedDeadlock,), r"operands\.full\[0\]"),
    ("expects half of a stage that nobody reads", (EmulatedDeadlock,), r"operands\.\w+\[\d\]"),
    ("no cluster", (EmulatedFault,), "CTAs of the cluster, with a multicast ring, is 1"),
)


@pytest.mark.parametrize("number", range(1, len(GEMM_DEFECTS)), ids=lambda i: GEMM_DEFECTS[i][0])
def test_a_misuse_by_a_gemm_is_reported_whatever_the_order(number: int) -> None:
    _, kinds, report = GEMM_DEFECTS[number]

    for policy, seed in ORDERS:
        with emulate.scheduled(policy, seed=seed), pytest.raises(kinds) as caught:
            multiplied(Emulate(), (300, 72, 328), ctas=2, defect=number)

        assert re.search(report, str(caught.value)), caught.value
