// Threads fill tiles and TMA stores them, with a barrier between but no proxy fence.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

extern "C" __global__ void unfenced_store(const __grid_constant__ Tile target) {
    __shared__ Tile::Shared tile;
    for (int i = threadIdx.x; i < Tile::kElements; i += blockDim.x) tile.data()[i] = 1;
    __syncthreads();
    if (threadIdx.x != 0) return;
    target.async_store(tile, {0, 0});
    commit_group();
    wait_group_read<0>();
}

struct Buffers {
    SharedMemBarrier full;
    Tile::Shared tiles[2];
};

// The second of two tiles is written after the fence for the first.
extern "C" __global__ void fenced_too_early(const __grid_constant__ Tile target, int rows) {
    auto& shared = dynamic_shared<Buffers>();
    for (int row = 0; row < rows; row += Tile::side(0)) {
        float* second = shared.tiles[1].data() + threadIdx.x;
        for (int i = 0; i < 8; ++i) shared.tiles[0].data()[threadIdx.x + 128 * i] = 1;
        fence_async_view_proxy();
        for (int i = 0; i < 8; ++i) second[128 * i] = row;
        __syncthreads();
        if (threadIdx.x == 0) {
            target.async_store(shared.tiles[0], {0, row});
            target.async_store(shared.tiles[1], {32, row});
            commit_group();
            wait_group_read<0>();
        }
        __syncthreads();
    }
}

// The same without a tensor map, at an offset that is known at run time only.
extern "C" __global__ void unfenced_bulk_store(float* target, int stage) {
    __shared__ alignas(128) float stages[4][256];
    stages[stage][threadIdx.x] = 2;
    __syncthreads();
    if (threadIdx.x != 0) return;
    ptx::cp_async_bulk_store(
        target, ptx::shared_address(stages[stage]), 1024, u64(CachePolicy::kEvictNormal)
    );
    commit_group();
    wait_group_read<0>();
}
