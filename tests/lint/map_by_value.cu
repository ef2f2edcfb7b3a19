// The map's parameter is no __grid_constant__, so each thread makes a copy of it.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

extern "C" __global__ void map_by_value(Tile source) {
    __shared__ Tile::Shared tile;
    __shared__ SharedMemBarrier full;
    if (threadIdx.x != 0) return;
    full.init();
    fence_barrier_init();
    full.expect_bytes(Tile::kBytes);
    source.async_copy(tile, full, {0, 0});
    full.wait(0);
}
