// A barrier is initialised, and the threads meet, but no fence shows it to TMA.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;
using Tile = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::kNone>;

extern "C" __global__ void unfenced_init(const __grid_constant__ Tile source) {
    __shared__ Tile::Shared tile;
    __shared__ SharedMemBarrier full;
    if (threadIdx.x == 0) full.init();
    __syncthreads();
    if (threadIdx.x == 0) {
        full.expect_bytes(Tile::kBytes);
        source.async_copy(tile, full, {0, 0});
    }
    full.wait(0);
}
