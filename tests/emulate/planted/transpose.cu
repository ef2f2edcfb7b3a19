// Transposes tiles: TMA loads one, threads exchange its elements, TMA stores the other.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kSide = Tile::side(0), kThreads = 128;
static_assert(Tile::side(1) == kSide);

struct SharedMemory {
    Tile::Shared in;
    Tile::Shared out;
    SharedMemBarrier full;
};
extern "C" __device__ const int transpose_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(kThreads) transpose(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int x = blockIdx.x * kSide, y = blockIdx.y * kSide;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.in, shared.full, {x, y});
    }
    __syncthreads();
    shared.full.wait(0);
    for (int i = threadIdx.x; i < Tile::kElements; i += kThreads) {
        const int row = i / kSide, column = i % kSide;
        shared.out.data()[column * kSide + row] = shared.in.data()[row * kSide + column];
    }
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        target.async_store(shared.out, {y, x});
        commit_group();
        wait_group_read<0>();
    }
}
