// The map lies in global memory, and nobody acquires it.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

extern "C" __global__ void map_in_global(const Tile* sources) {
    __shared__ Tile::Shared tile;
    __shared__ SharedMemBarrier full;
    if (threadIdx.x != 0) return;
    full.init();
    fence_barrier_init();
    full.expect_bytes(Tile::kBytes);
    sources[blockIdx.x].async_copy(tile, full, {0, 0});
    full.wait(0);
}

__device__ Tile maps[4];

extern "C" __global__ void map_in_variable() {
    __shared__ Tile::Shared tile;
    __shared__ SharedMemBarrier full;
    if (threadIdx.x != 0) return;
    full.init();
    fence_barrier_init();
    full.expect_bytes(Tile::kBytes);
    maps[blockIdx.x].async_copy(tile, full, {0, 0});
    full.wait(0);
}
