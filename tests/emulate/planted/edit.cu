// Each block moves its tensor map to its group of rows, and loads the group's first tile.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    TensorMap scratch;
    SharedMemBarrier full;
};
extern "C" __device__ const int groups_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void groups(
    TMATensorTileArray<Tile> tiles, float* values, const int* starts, float* firsts
) {
    auto& shared = dynamic_shared<SharedMemory>();
    Tile& tile = tiles.at(blockIdx.x);
    float* group = values + starts[blockIdx.x] * Tile::side(1);
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        tile.smem_tensormap_init(shared.scratch);
        tile.replace_tensormap_global_address_in_shared_mem(shared.scratch, group);
    }
    __syncwarp();
    if (threadIdx.x < 32) tile.tensormap_cp_fence_release(shared.scratch);
    __syncthreads();
    if (threadIdx.x == 0) {
        tile.tensormap_fence_acquire();
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
    }
    shared.full.wait(0);
    for (int i = threadIdx.x; i < Tile::kElements; i += blockDim.x) {
        firsts[blockIdx.x * Tile::kElements + i] = shared.tile.data()[i];
    }
}
