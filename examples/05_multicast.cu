// New here: a cluster, and multicast. The blocks of a cluster run at the same time, and
// one load can write a tile into the shared memory of all of them: it is read from global
// memory once.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kInputs = Tile::side(0);
constexpr int kPixels = Tile::side(1);
constexpr u16 kAllBlocks = (1 << CLUSTER) - 1;  // one bit per block of the cluster

struct SharedMemory {
    Tile::Shared pixels;
    SharedMemBarrier full;
};
extern "C" __device__ const int mix_channels_shared_bytes = sizeof(SharedMemory);

// Every block waits on its own barrier, so each expects the bytes. The first block issues
// the load.
__device__ void load_for_all(SharedMemory& shared, const Tile& source, int x) {
    shared.full.expect_bytes(Tile::kBytes);
    if (block_rank_in_cluster() == 0) {
        source.async_multicast_load(shared.pixels, shared.full, {x, 0}, kAllBlocks);
    }
}

// The weighted sum of all input channels of a pixel.
__device__ float mix(const Tile::Shared& pixels, const float* weights, int pixel) {
    float sum = 0;
    for (int input = 0; input < kInputs; ++input) {
        sum += weights[input] * pixels.data()[input * kPixels + pixel];
    }
    return sum;
}

// Block r of a cluster computes output channel r; all blocks need the same input pixels.
extern "C" __global__ void mix_channels(
    const __grid_constant__ Tile source, const float* weights, float* mixed, int pixels
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int output = block_rank_in_cluster();
    const int x = blockIdx.x / CLUSTER * kPixels;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    cluster_sync();  // no load may reach a block before its barrier is initialised

    if (threadIdx.x == 0) load_for_all(shared, source, x);
    shared.full.wait(0);
    const int pixel = x + threadIdx.x;
    if (pixel < pixels) {
        mixed[output * pixels + pixel] =
            mix(shared.pixels, weights + output * kInputs, threadIdx.x);
    }
    cluster_sync();  // no block exits while a load into its shared memory may be in flight
}
