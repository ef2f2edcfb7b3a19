// Every thread of the block issues the load.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

extern "C" __global__ void copy_by_all(const __grid_constant__ Tile source, int rows) {
    __shared__ Tile::Shared tile;
    __shared__ SharedMemBarrier full;
    if (threadIdx.x == 0) {
        full.init(blockDim.x);
        fence_barrier_init();
    }
    __syncthreads();
    for (int row = 0; row < rows; row += Tile::side(0)) {
        full.expect_bytes(Tile::kBytes);
        source.async_copy(tile, full, {0, row});
        full.wait(row / Tile::side(0) % 2);
    }
}

// A loop over elements, which all threads leave, chooses none of them.
extern "C" __global__ void after_a_loop(const __grid_constant__ Tile target) {
    __shared__ Tile::Shared tile;
    for (int i = threadIdx.x; i < Tile::kElements; i += blockDim.x) tile.data()[i] = 1;
    fence_async_view_proxy();
    __syncthreads();
    target.async_store(tile, {0, 0});
    commit_group();
    wait_group_read<0>();
}
