"""Sound programs of the structured layer on the emulator, for misuses to be planted in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from parity import test_ring, test_thread_fed_rings
from parity.backends import Emulate
from planted_choices import choosing

from tmaasync import Kernel, Swizzle, create_tma_tile

__all__ = ["PROGRAMS"]

# Moves tiles by one thread, in two runs of one object.
MOVE = """
#include <tmaasync/shared.cuh>
#include <tmaasync/structured/store_ring.cuh>
#include <tmaasync/warp.cuh>

using namespace tmaasync;

struct Stage {
    Tile::Shared tile;
};
struct SharedMemory {
    StoreRing<Stage, 3, 2> ring;
};
extern "C" __device__ const int move_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void move(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, int tiles
) {
    auto& ring = dynamic_shared<SharedMemory>().ring;
    if (!elect()) return;
    ring.init();
    const auto load = [&](const auto& stage, int index) {
        source.async_copy(stage->tile, stage.full(), {0, index * Tile::side(0)});
    };
    const auto store = [&](auto& stage, int index) {
        target.async_store(stage.tile, {0, index * Tile::side(0)});
    };
    auto transfers = ring.transfers();
    transfers.run(0, 4, load, store);
    transfers.run(4, tiles, load, store);
}
"""


@choosing
def kernel_of(source: str, name: str, types: tuple[tuple[str, str], ...], debug: bool) -> Kernel:
    return Kernel(source, name, types=dict(types), debug=debug)


def move(source: str, debug: bool) -> None:
    array = np.random.default_rng(0).random((11 * 16, 32), np.float32)
    moved = np.full_like(array, np.nan)
    tiles = [create_tma_tile(x, (16, 32)) for x in (array, moved)]
    kernel = kernel_of(source, "move", (("Tile", tiles[0].cuda_type),), debug)
    kernel(1, 32, (*tiles, 11))
    assert np.array_equal(moved, array)


# A GEMM whose consumers share a tile: roles, schedule, main loop and epilogue.
LAYERED = """
#include <tmaasync/shared.cuh>
#include <tmaasync/structured/dynamic_scheduler.cuh>
#include <tmaasync/structured/epilogue.cuh>
#include <tmaasync/structured/list_scheduler.cuh>
#include <tmaasync/structured/mainloop.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/static_scheduler.cuh>

using namespace tmaasync;

constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1);
using Roles = WarpSpecialized<2>;
using Tiles = OutputTiles<kM, kN>;
using Loop = MainLoop<WgmmaOperand<ATile, Major::kK>, WgmmaOperand<BTile, Major::kK>, 64, kN>;
using Output = Epilogue<CTile, kN>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory {
    Ring<Stage, 3, ConsumerWarps<Roles::kConsumerWarps>> ring;
    Output::Shared epilogue[Roles::kConsumers];

    __device__ void init() { ring.init(); }
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

struct Doubled {
    template <typename Accumulators, typename Tile>
    __device__ void apply(Accumulators& accumulators, const Tile&) const {
        for (auto& block : accumulators) {
            for (float& value : block) value *= 2;
        }
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k_blocks,
    u32* counter
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const StaticScheduler<Tiles> schedule(Tiles(m, n));
    const auto produce = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (auto stage : producer.produce(k_blocks)) {
                const int k = stage.iteration() * kK;
                a.async_copy(stage->a, stage.full(), {k, tile.m});
                b.async_copy(stage->b, stage.full(), {k, tile.n});
            }
        }
    };
    const auto consume = [&](int number) {
        auto consumer = shared.ring.consumer<Proxy::kAsync>();
        Output epilogue(shared.epilogue[number], number, number * 64);
        for (const auto tile : schedule) {
            Loop::Accumulators accumulators;
            Loop::multiply(consumer, accumulators, k_blocks, number * 64);
            epilogue.store(
                accumulators, c, tile, Doubled{},
                [](float value, int row, int column) { return value + row - column; }
            );
        }
        epilogue.drain();
    };
    Roles::run(shared, produce, consume, a, b, c);
}
"""


def gemm(source: str, debug: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 264)).astype(np.float16) for rows in (128, 192))
    c = np.full((128, 192), np.nan, np.float32)
    tiles = {
        name: create_tma_tile(array, sides, swizzle=Swizzle.B128)
        for name, array, sides in (
            ("ATile", a, (128, 64)),
            ("BTile", b, (64, 64)),
            ("CTile", c, (64, 32)),
        )
    }
    types = tuple((name, tile.cuda_type) for name, tile in tiles.items())
    kernel_of(source, "gemm", types, debug)(
        1, 384, (*tiles.values(), *c.shape, 5, np.zeros(1, np.uint32))
    )
    rows, columns = np.indices(c.shape)
    assert np.array_equal(c, 2 * a.astype(np.float32) @ b.astype(np.float32).T + rows - columns)


def copy(source: str, debug: bool) -> None:
    got, wanted = test_ring.copied(Emulate(), 9 * test_ring.ROWS, source, debug=debug)
    assert np.array_equal(got, wanted)


def multicast(source: str, debug: bool) -> None:
    got, wanted = test_ring.multiplied(Emulate(), (300, 72, 328), source, ctas=2, alone=debug)
    assert np.array_equal(got, wanted)


def gather(source: str, debug: bool) -> None:
    got, wanted = test_thread_fed_rings.gathered(
        Emulate(), source, copies=True, threads=64, debug=debug
    )
    assert np.array_equal(got, wanted)


def convert(source: str, debug: bool) -> None:
    got, wanted = test_thread_fed_rings.gathered(
        Emulate(), source, copies=False, threads=64, debug=debug
    )
    assert np.array_equal(got, wanted)


def gathered_gemm(source: str, debug: bool) -> None:
    assert not debug
    got, wanted = test_thread_fed_rings.multiplied(Emulate(), source)
    assert np.array_equal(got, wanted)


PROGRAMS: dict[str, tuple[str, Callable[[str, bool], None]]] = {
    "copy": (test_ring.COPY, copy),
    "multicast": (test_ring.GEMM, multicast),
    "gather": (test_thread_fed_rings.GATHER, gather),
    "convert": (test_thread_fed_rings.GATHER, convert),
    "gathered gemm": (test_thread_fed_rings.GEMM, gathered_gemm),
    "move": (MOVE, move),
    "gemm": (LAYERED, gemm),
}
