// Running sums of a block: of each warp by shuffles, then of the warps.
constexpr int kThreads = 128;

extern "C" __global__ void scan(const int* values, int* sums) {
    __shared__ int warps[kThreads / 32];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int sum = values[blockIdx.x * kThreads + thread];
    for (int distance = 1; distance < 32; distance *= 2) {
        const int below = __shfl_up_sync(0xffffffff, sum, distance);
        if (lane >= distance) sum += below;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if (warp == 0 && lane < kThreads / 32) {
        int total = warps[lane];
        for (int distance = 1; distance < kThreads / 32; distance *= 2) {
            const int below = __shfl_up_sync(0xf, total, distance);
            if (lane >= distance) total += below;
        }
        warps[lane] = total;
    }
    __syncthreads();
    if (warp > 0) sum += warps[warp - 1];
    sums[blockIdx.x * kThreads + thread] = sum;
}
