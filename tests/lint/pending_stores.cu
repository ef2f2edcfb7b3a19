// Three kernels whose last store nobody waits for.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

__device__ void fill(Tile::Shared& tile, float value) {
    for (int i = threadIdx.x; i < Tile::kElements; i += blockDim.x) tile.data()[i] = value;
    fence_async_view_proxy();
    __syncthreads();
}

extern "C" __global__ void never_committed(const __grid_constant__ Tile target) {
    __shared__ Tile::Shared tile;
    fill(tile, 1);
    if (threadIdx.x == 0) target.async_store(tile, {0, 0});
}

extern "C" __global__ void never_waited_for(const __grid_constant__ Tile target) {
    __shared__ Tile::Shared tile;
    fill(tile, 1);
    if (threadIdx.x != 0) return;
    target.async_store(tile, {0, 0});
    commit_group();
}

extern "C" __global__ void last_not_waited_for(const __grid_constant__ Tile target, int rows) {
    __shared__ Tile::Shared tiles[2];
    for (int row = 0; row < rows; row += Tile::side(0)) {
        Tile::Shared& tile = tiles[row / Tile::side(0) % 2];
        fill(tile, 1);
        if (threadIdx.x == 0) {
            target.async_store(tile, {0, row});
            commit_group();
            wait_group_read<1>();
        }
        __syncthreads();
    }
}
