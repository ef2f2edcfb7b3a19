// A sum over the grid: each block adds its share, and the last one adds up the blocks.
constexpr int kThreads = 128;

__device__ float add_up(float value, float* warps) {
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_down_sync(0xffffffff, value, distance);
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x >= 32) return 0;
    value = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : 0;
    for (int distance = 2; distance > 0; distance /= 2) {
        value += __shfl_down_sync(0xffffffff, value, distance);
    }
    return value;
}

extern "C" __global__ void reduce(
    const float* values, int count, float* partial, unsigned* done, float* result
) {
    __shared__ float warps[kThreads / 32];
    __shared__ bool is_last;
    float sum = 0;
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
        sum += values[i];
    }
    sum = add_up(sum, warps);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    sum = threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0;
    __syncthreads();
    sum = add_up(sum, warps);
    if (threadIdx.x == 0) *result = sum;
}
