// A three-point stencil: cp.async brings the next chunk while the present one is averaged.
#include <tmaasync/cp_async.cuh>

using namespace tmaasync;

constexpr int kChunk = 256, kThreads = kChunk / 4;

extern "C" __global__ void stencil(const float* values, float* averaged, int chunks) {
    __shared__ __align__(16) float buffers[2][kChunk];
    const int thread = threadIdx.x;
    cp_async_gs<16>(&buffers[0][thread * 4], values + thread * 4);
    cp_async_commit();
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const float* mine = buffers[chunk % 2];
        if (chunk + 1 < chunks) {
            float* next = buffers[(chunk + 1) % 2];
            cp_async_gs<16>(&next[thread * 4], values + (chunk + 1) * kChunk + thread * 4);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        for (int i = thread; i < kChunk; i += kThreads) {
            const float left = mine[max(i - 1, 0)], right = mine[min(i + 1, kChunk - 1)];
            averaged[chunk * kChunk + i] = (left + mine[i] + right) / 3;
        }
        __syncthreads();
    }
}
