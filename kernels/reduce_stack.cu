// Adds the arrays of a stack to one array. The CTA adds up the tiles of its arrays in registers and
// adds each result to the target by one TMA reduction: L2 adds at half the bandwidth of DRAM reads.
// A producer thread loads tiles through a ring; the consumer warps add them up. CTA i takes the
// i-th of equal spans of all (tile of the target, array of the stack) pairs, arrays innermost, so
// that few tiles keep all SMs busy as well as many.
//
//   Tile            a TMATensorTile whose outermost side counts arrays and is 1
//   STAGES          pipeline stages
//   CONSUMER_WARPS  warps that sum
#include <tmaasync/tmaasync.cuh>

#include "tile_grid.cuh"
#include "tile_sum.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;

struct Stage {
    static constexpr int kBytes = Tile::kBytes;  // padding follows a short tile
    Tile::Shared tile;
};
struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<CONSUMER_WARPS>> ring;
    Tile::Shared sum;
};
extern "C" __device__ const int reduce_stack_shared_bytes = sizeof(SharedMemory);

// The outermost dimension of the grid counts arrays.
__device__ Coordinates<Tile::kRank> tile_start(const TileGrid& grid, i64 tile, i32 array) {
    auto at = grid.start_of<Tile, Tile::kRank - 1>(tile);
    at.values[Tile::kRank - 1] = array;
    return at;
}

// Calls work(tile, first array, count) for each tile of the CTA's pairs.
template <typename Work>
__device__ void for_each_tile(const TileGrid& grid, const Work& work) {
    const i64 pairs = grid.count<Tile::kRank>(), arrays = grid.tiles[Tile::kRank - 1];
    const i64 end = pairs * (blockIdx.x + 1) / gridDim.x;
    for (i64 pair = pairs * blockIdx.x / gridDim.x; pair < end;) {
        const i64 tile = pair / arrays, first = pair - tile * arrays;
        const i64 count = min(arrays - first, end - pair);
        work(tile, static_cast<i32>(first), static_cast<i32>(count));
        pair += count;
    }
}

__device__ void produce(SharedMemory& shared, const Tile& source, const TileGrid& grid) {
    auto producer = shared.ring.producer();
    for_each_tile(grid, [&](i64 tile, i32 first, i32 count) {
        auto at = tile_start(grid, tile, first);
        for (auto stage : producer.produce(count)) {
            source.async_copy(stage->tile, stage.full(), at, CachePolicy::kEvictFirst);
            ++at.values[Tile::kRank - 1];
        }
    });
}

__device__ void consume(SharedMemory& shared, const Tile& target, const TileGrid& grid) {
    const NamedBarrier<kConsumers> consumers{1};
    auto consumer = shared.ring.consumer();
    for_each_tile(grid, [&](i64 tile, i32, i32 count) {
        TileSum accumulators;
        accumulators.clear();
        for (auto stage : consumer.consume(count)) accumulators.add(stage->tile);
        if (threadIdx.x == 0) wait_group_read<0>();  // the tile before has left shared.sum
        consumers.sync();
        accumulators.write(shared.sum);
        fence_async_view_proxy();
        consumers.sync();
        if (threadIdx.x == 0) {
            target.async_reduce<ReduceOp::kAdd>(shared.sum, tile_start(grid, tile, 0));
            commit_group();
        }
    });
    if (threadIdx.x == 0) wait_group_read<0>();
}

extern "C" __global__ void __launch_bounds__(kConsumers + 32) reduce_stack(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, const TileGrid grid
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        source.prefetch_descriptor();
        target.prefetch_descriptor();
        shared.ring.init();
    }
    __syncthreads();
    if (warp_index() < CONSUMER_WARPS) {
        consume(shared, target, grid);
    } else if (elect()) {
        produce(shared, source, grid);
    }
}
