"""Multicast through a ring that all CTAs of a cluster fill and empty together."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from parity.backends import Cuda, Emulate
from parity.tile_oracle import loaded

from tmaasync import Kernel, Swizzle, TMATensorTile, create_tma_tile, emulate

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kStages = 3;

struct SharedMemory {
    Tile::Shared tiles[kStages];
    SharedMemBarrier full[kStages];
    SharedMemBarrier empty[kStages];
};

extern "C" __device__ const int relay_shared_bytes = sizeof(SharedMemory);

// Every CTA loads its share of the boxes, or in turn the whole tile, for all.
__device__ void produce(const Tile& tile, SharedMemory& shared, int tiles) {
    const u32 rank = block_rank_in_cluster();
    constexpr u16 kAll = (1u << CTAS) - 1;
    auto place = PipelineState<kStages>::for_producer();
    for (int index = 0; index < tiles; ++index, place.step()) {
        const Coordinates<2> at{0, index * Tile::side(0)};
        auto& full = shared.full[place.index];
        shared.empty[place.index].wait(place.phase);
        full.expect_bytes(Tile::kBytes);
        if constexpr (PARTITIONED) {
            tile.async_multicast_load_partitioned<CTAS>(
                shared.tiles[place.index], full, at, kAll, rank
            );
        } else {
            const bool is_mine = index % CTAS == rank;
            tile.async_multicast_load_elect(shared.tiles[place.index], full, at, kAll, is_mine);
        }
    }
}

// CTA r keeps what it sees of tile i at images[r * tiles + i].
__device__ void consume(SharedMemory& shared, int tiles, unsigned char* images) {
    auto place = PipelineState<kStages>::for_consumer();
    for (int index = 0; index < tiles; ++index, place.step()) {
        shared.full[place.index].wait(place.phase);
        unsigned char* image = images + static_cast<u64>(index) * Tile::kBytes;
        const u64* words = reinterpret_cast<const u64*>(shared.tiles[place.index].bytes);
        for (int i = lane_index(); i < Tile::kBytes / 8; i += 32) {
            reinterpret_cast<u64*>(image)[i] = words[i];
        }
        __syncwarp();
        // The buffer is free once every CTA that is written to has read it.
        if (lane_index() < CTAS) shared.empty[place.index].arrive_cluster(lane_index());
    }
}

extern "C" __global__ void relay(
    const __grid_constant__ Tile tile, int tiles, unsigned char* images
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            shared.full[stage].init(1);
            shared.empty[stage].init(CTAS);
        }
        fence_barrier_init();
    }
    cluster_sync();
    images += static_cast<u64>(block_rank_in_cluster()) * tiles * Tile::kBytes;
    if (warp_index() == 0 && lane_index() == 0) produce(tile, shared, tiles);
    if (warp_index() == 1) consume(shared, tiles, images);
    __syncwarp();
    cluster_sync();  // a peer may still write here, or signal
}
"""


@functools.cache
def kernel_for(cuda_type: str, ctas: int, partitioned: bool) -> Kernel:
    constants = {"CTAS": ctas, "PARTITIONED": partitioned}
    return Kernel(SOURCE, "relay", types={"Tile": cuda_type}, constants=constants)


def relay(backend: Any, tile: TMATensorTile, ctas: int, partitioned: bool, tiles: int) -> Any:
    images = backend.array(np.full((ctas, tiles, tile.tile_bytes), 0xCC, np.uint8))
    kernel_for(tile.cuda_type, ctas, partitioned)(ctas, 64, (tile, tiles, images), cluster=ctas)
    return backend.host(images)


ROWS, COLUMNS = 24, 96


def relayed_rows(tiles: int) -> np.ndarray[Any, Any]:
    """The last tile lacks five rows."""
    return np.random.default_rng(tiles).random((tiles * ROWS - 5, COLUMNS), np.float32)


def relay_rows(backend: Any, ctas: int, partitioned: bool, tiles: int) -> Any:
    """What every CTA sees of every tile of the rows."""
    array = backend.array(relayed_rows(tiles))
    tile = create_tma_tile(array, (ROWS, COLUMNS), swizzle=Swizzle.B128, box_shape=(8, 32))
    return relay(backend, tile, ctas, partitioned, tiles)


# Boxes per tile: shared out evenly, unevenly, and fewer than there are CTAs.
@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 7)
@pytest.mark.parametrize("ctas", [2, 4, 8, pytest.param(16, id="16-non-portable")])
@pytest.mark.parametrize("partitioned", [True, False], ids=["shares", "turns"])
@pytest.mark.chips("sm_90a", "sm_100a")
def test_every_cta_sees_every_tile(backend: Any, ctas: int, partitioned: bool) -> None:
    tiles = 1000 if isinstance(backend, Cuda) else 12

    got = relay_rows(backend, ctas, partitioned, tiles)

    host = relayed_rows(tiles)
    for index in range(tiles):
        wanted = loaded(host, (index * ROWS, 0), (ROWS, COLUMNS), (8, 32), span_bits=3)
        assert (got[:, index] == wanted).all(), index


def test_any_interleaving_of_the_handshake_is_right() -> None:
    host = np.random.default_rng(1).random((96, 96), np.float32)
    tile = create_tma_tile(host, (24, 96), swizzle=Swizzle.B128, box_shape=(8, 32))
    wanted = [loaded(host, (r, 0), (24, 96), (8, 32), span_bits=3) for r in range(0, 96, 24)]

    for seed in range(2):
        with emulate.scheduled("random", seed=seed):
            got = relay(Emulate(), tile, 4, True, 4)

        assert all(np.array_equal(cta[index], wanted[index]) for cta in got for index in range(4))


EVERY_RANK = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tiles[2];
    SharedMemBarrier full;
};

extern "C" __device__ const int both_shared_bytes = sizeof(SharedMemory);

// Two CTAs. The second loads a tile for both, then each its share of the same.
extern "C" __global__ void both(
    const __grid_constant__ Tile tile, const i32* place, unsigned char* images
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 rank = block_rank_in_cluster();
    Coordinates<Tile::kRank> at;
    for (int dim = 0; dim < Tile::kRank; ++dim) at.values[dim] = place[dim];
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
        shared.full.expect_bytes(2 * Tile::kBytes);
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        if (rank == 1) {
            tile.async_multicast_load(shared.tiles[0], shared.full, at, 3, CachePolicy::kEvictLast);
        }
        tile.async_multicast_load_partitioned<2>(
            shared.tiles[1], shared.full, at, 3, rank, CachePolicy::kEvictFirst
        );
    }
    shared.full.wait(0);
    for (int i = threadIdx.x; i < Tile::kBytes; i += blockDim.x) {
        images[(2 * rank) * Tile::kBytes + i] = shared.tiles[0].bytes[i];
        images[(2 * rank + 1) * Tile::kBytes + i] = shared.tiles[1].bytes[i];
    }
    cluster_sync();
}
"""


SHAPE, SIDES, PLACE = (2, 3, 4, 5, 100), (1, 2, 3, 4, 96), (1, 2, 2, 3, 32)


def multicast(backend: Any, rank: int) -> tuple[Any, Any]:
    """What both CTAs see of a tile, loaded whole and by shares, and what they must."""
    shape, sides, place = (numbers[5 - rank :] for numbers in (SHAPE, SIDES, PLACE))
    host = np.random.default_rng(rank).random(shape, np.float32)
    box, swizzle = (*sides[:-1], 32), Swizzle.B128 if rank > 1 else Swizzle.NONE
    tile = create_tma_tile(backend.array(host), sides, box_shape=box, swizzle=swizzle)
    images = backend.array(np.full((2, 2, tile.tile_bytes), 0xCC, np.uint8))
    kernel = Kernel(EVERY_RANK, "both", types={"Tile": tile})

    kernel(2, 32, (tile, backend.array(np.array(place[::-1], np.int32)), images), cluster=2)

    return backend.host(images), loaded(host, place, sides, box, span_bits=int(swizzle))


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(2)
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_multicast_of_every_rank(backend: Any, rank: int) -> None:
    got, wanted = multicast(backend, rank)

    assert (got == wanted).all()
