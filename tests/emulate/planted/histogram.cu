// Counts bytes: each block in shared memory with atomics, then adds its counts to all.
constexpr int kBins = 256, kThreads = 128;

extern "C" __global__ void histogram(const unsigned char* data, int count, unsigned* bins) {
    __shared__ unsigned own[kBins];
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) own[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
        atomicAdd(&own[data[i]], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) atomicAdd(&bins[bin], own[bin]);
}
