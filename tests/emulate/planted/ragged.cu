// Sequences of several lengths in one array: each block halves one and stores whole chunks.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kChunk = 64;

struct SharedMemory {
    alignas(128) float in[kChunk];
    alignas(128) float out[kChunk];
    SharedMemBarrier full;
};
extern "C" __device__ const int halve_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void halve(const float* packed, float* halved, const int* starts) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int thread = threadIdx.x, end = starts[blockIdx.x + 1];
    if (thread == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    int phase = 0;
    for (int at = starts[blockIdx.x]; at < end; at += kChunk, phase ^= 1) {
        const int count = min(kChunk, end - at);
        const unsigned bytes = count * sizeof(float);
        if (thread == 0) {
            wait_group_read<0>();
            shared.full.expect_bytes(bytes);
            tma_load_1d(packed + at, shared.full, shared.in, bytes);
        }
        shared.full.wait(phase);
        __syncthreads();
        if (thread < count) shared.out[thread] = shared.in[thread] / 2;
        fence_async_view_proxy();
        __syncthreads();
        if (thread == 0) {
            tma_store_1d(halved + at, shared.out, bytes);
            commit_group();
        }
    }
    if (thread == 0) wait_group<0>();
}
