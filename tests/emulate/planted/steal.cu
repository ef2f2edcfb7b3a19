// Blocks take rows from a counter in global memory, load each with TMA and sum it.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kColumns = 64;

struct SharedMemory {
    float row[kColumns];
    float sum;
    int next;
    SharedMemBarrier full;
};
extern "C" __device__ const int steal_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void steal(const float* values, float* sums, int* counter, int rows) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    for (int phase = 0;; phase ^= 1) {
        if (threadIdx.x == 0) {
            shared.next = atomicAdd(counter, 1);
            shared.sum = 0;
        }
        __syncthreads();
        const int row = shared.next;
        if (row >= rows) break;
        if (threadIdx.x == 0) {
            shared.full.expect_bytes(sizeof(shared.row));
            tma_load_1d(values + row * kColumns, shared.full, shared.row, sizeof(shared.row));
        }
        shared.full.wait(phase);
        atomicAdd(&shared.sum, shared.row[threadIdx.x]);
        __syncthreads();
        if (threadIdx.x == 0) sums[row] = shared.sum;
    }
}
