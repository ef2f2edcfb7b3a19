// Copies an array tile by tile: one thread of each CTA keeps a ring of loads and stores in flight.
// Any grid covers the array. Short-lived blocks of a few tiles beat a persistent grid by 4 to 7 %
// on an H200: blocks that start at different times keep DRAM reads and writes mixed.
//
//   Tile         what moves: a TMATensorTile of any rank, or a BulkTile
//   STAGES       buffers in the ring
//   LOADS_AHEAD  loads in flight; the other stages are being stored
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

static_assert(0 < LOADS_AHEAD && LOADS_AHEAD <= STAGES, "loads fill the ring at most");

struct Ring {
    typename Tile::Shared tiles[STAGES];
    SharedMemBarrier full[STAGES];
};

using RingPlace = PipelineState<STAGES>;

extern "C" __device__ const int copy_shared_bytes = sizeof(Ring);

// How many tiles the array has along each dimension, innermost first; 1 beyond the rank.
struct TileGrid {
    i32 tiles[5];
};

__device__ i64 count_tiles(const TileGrid& grid) {
    i64 count = 1;
    for (int dim = 0; dim < 5; ++dim) count *= grid.tiles[dim];
    return count;
}

// Neighbouring indices are neighbours in memory.
template <typename Tile>
__device__ auto tile_start(const TileGrid& grid, i64 index) {
    if constexpr (Tile::kIsBulk) {
        return index * Tile::kElements;
    } else {
        Coordinates<Tile::kRank> at;
#pragma unroll
        for (int dim = 0; dim < Tile::kRank; ++dim) {
            at.values[dim] =
                static_cast<i32>(index % grid.tiles[dim]) * Tile::tile_step(Tile::kRank - 1 - dim);
            index /= grid.tiles[dim];
        }
        return at;
    }
}

__device__ void load_tile(
    Ring& ring, RingPlace place, const Tile& source, const TileGrid& grid, i64 index
) {
    const auto at = tile_start<Tile>(grid, index);
    auto& full = ring.full[place.index];
    full.expect_bytes(source.bytes_at(at));
    source.async_copy(ring.tiles[place.index], full, at);
}

__device__ void store_tile(
    Ring& ring, RingPlace place, const Tile& target, const TileGrid& grid, i64 index
) {
    ring.full[place.index].wait(place.phase);
    const auto at = tile_start<Tile>(grid, index);
    target.async_store(ring.tiles[place.index], at);
    commit_group();
}

// A block copies consecutive tiles. Both sides of the ring are TMA, so no proxy fence is needed and
// the bulk groups stand in for empty barriers.
__device__ void copy_tiles(
    Ring& ring, const Tile& source, const Tile& target, const TileGrid& grid
) {
    const i64 tiles = count_tiles(grid);
    const i64 tiles_per_block = (tiles + gridDim.x - 1) / gridDim.x;
    const i64 first = blockIdx.x * tiles_per_block;
    const i64 end = min(first + tiles_per_block, tiles);
    auto loaded = RingPlace::for_consumer();
    auto stored = RingPlace::for_consumer();

    i64 next = first;
    for (; next < min(first + LOADS_AHEAD, end); ++next, loaded.step()) {
        load_tile(ring, loaded, source, grid, next);
    }
    for (i64 index = first; index < end; ++index, stored.step()) {
        store_tile(ring, stored, target, grid, index);
        if (next < end) {
            // The stage about to be loaded was stored STAGES - LOADS_AHEAD stores ago.
            wait_group_read<STAGES - LOADS_AHEAD>();
            load_tile(ring, loaded, source, grid, next);
            loaded.step();
            ++next;
        }
    }
    wait_group_read<0>();
}

extern "C" __global__ void __launch_bounds__(32) copy(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, const TileGrid grid
) {
    auto& ring = dynamic_shared<Ring>();
    if (!elect()) return;

    source.prefetch_descriptor();
    target.prefetch_descriptor();
    for (auto& full : ring.full) full.init(1);
    fence_barrier_init();

    copy_tiles(ring, source, target, grid);
}
