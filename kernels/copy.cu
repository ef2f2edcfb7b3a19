// Copies an array tile by tile: one thread of each CTA keeps a pipeline (a ring buffer) of loads
// and stores in flight. Any grid covers the array. Short-lived blocks of a few tiles beat a
// persistent grid by 4 to 7 % on an H200: blocks that start at different times keep DRAM reads and
// writes mixed.
//
//   Tile         a TMATensorTile of any rank, or a BulkTile
//   STAGES       pipeline stages
//   LOADS_AHEAD  loads in flight; the other stages are being stored
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

static_assert(0 < LOADS_AHEAD && LOADS_AHEAD <= STAGES, "loads fill all stages at most");

struct SharedMemory {
    typename Tile::Shared tiles[STAGES];
    SharedMemBarrier full[STAGES];
};

using StageState = PipelineState<STAGES>;

extern "C" __device__ const int copy_shared_bytes = sizeof(SharedMemory);

// Tiles of the array along each dimension, innermost first; 1 beyond the rank. A parameter that the
// host packs.
struct TileGrid {
    i32 tiles[5];
};
static_assert(sizeof(TileGrid) == 20);

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
    SharedMemory& shared, StageState state, const Tile& source, const TileGrid& grid, i64 index
) {
    const auto at = tile_start<Tile>(grid, index);
    auto& full = shared.full[state.index];
    full.expect_bytes(source.bytes_at(at));
    source.async_copy(shared.tiles[state.index], full, at);
}

__device__ void store_tile(
    SharedMemory& shared, StageState state, const Tile& target, const TileGrid& grid, i64 index
) {
    shared.full[state.index].wait(state.phase);
    const auto at = tile_start<Tile>(grid, index);
    target.async_store(shared.tiles[state.index], at);
    commit_group();
}

// Copies consecutive tiles. TMA both fills and drains the stages, so no proxy fence is needed and
// the bulk groups stand in for empty barriers.
__device__ void copy_tiles(
    SharedMemory& shared, const Tile& source, const Tile& target, const TileGrid& grid
) {
    const i64 tiles = count_tiles(grid);
    const i64 tiles_per_block = (tiles + gridDim.x - 1) / gridDim.x;
    const i64 first = blockIdx.x * tiles_per_block;
    const i64 end = min(first + tiles_per_block, tiles);
    auto loaded = StageState::for_consumer();
    auto stored = StageState::for_consumer();

    i64 next = first;
    for (; next < min(first + LOADS_AHEAD, end); ++next, loaded.step()) {
        load_tile(shared, loaded, source, grid, next);
    }
    for (i64 index = first; index < end; ++index, stored.step()) {
        store_tile(shared, stored, target, grid, index);
        if (next < end) {
            // The stage about to be loaded was stored STAGES - LOADS_AHEAD stores ago.
            wait_group_read<STAGES - LOADS_AHEAD>();
            load_tile(shared, loaded, source, grid, next);
            loaded.step();
            ++next;
        }
    }
    wait_group_read<0>();
}

extern "C" __global__ void __launch_bounds__(32) copy(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, const TileGrid grid
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (!elect()) return;

    source.prefetch_descriptor();
    target.prefetch_descriptor();
    for (auto& full : shared.full) full.init(1);
    fence_barrier_init();

    copy_tiles(shared, source, target, grid);
}
