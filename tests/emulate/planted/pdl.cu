// Two kernels: the second starts before the first has ended, and waits for what that wrote.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kThreads = 64;

extern "C" __global__ void scale(const float* values, float* scaled) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    scaled[i] = 2 * values[i];
    launch_dependent_grids();
}

struct SharedMemory {
    alignas(128) float block[kThreads];
    SharedMemBarrier full;
};
extern "C" __device__ const int shift_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void shift(const float* scaled, const float* bias, float* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    const float added = bias[i];
    wait_for_previous_grids();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.full.expect_bytes(sizeof(shared.block));
        tma_load_1d(
            scaled + blockIdx.x * kThreads, shared.full, shared.block, sizeof(shared.block)
        );
    }
    shared.full.wait(0);
    out[i] = shared.block[threadIdx.x] + scaled[i] + added;
}
