// Running sums over rows: each block waits for the block before, and adds its row with TMA.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kColumns = 64;

struct SharedMemory {
    alignas(128) float before[kColumns];
    SharedMemBarrier full;
};
extern "C" __device__ const int chain_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void chain(const float* values, float* sums, int* flags) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int row = blockIdx.x, column = threadIdx.x;
    if (column == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    float sum = values[row * kColumns + column];
    if (row > 0) {
        if (column == 0) {
            while (atomicAdd(&flags[row - 1], 0) == 0) __nanosleep(20);
            __threadfence();
            ptx::fence_proxy_async_global();
            shared.full.expect_bytes(sizeof(shared.before));
            const float* before = sums + (row - 1) * kColumns;
            tma_load_1d(before, shared.full, shared.before, sizeof(shared.before));
        }
        shared.full.wait(0);
        sum += shared.before[column];
    }
    sums[row * kColumns + column] = sum;
    ptx::fence_proxy_async_global();
    __syncthreads();
    if (column == 0) {
        __threadfence();
        atomicExch(&flags[row], 1);
    }
}
