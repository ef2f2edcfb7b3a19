// nvcc -ptx -arch=sm_90a -lineinfo features.cu (CUDA 13.0) wrote features.ptx.
#include <cassert>
#include <cstdio>

struct Pair {
    float a;
    int b;
};
typedef float (*Function)(float);

__device__ float next(float x) {
    return x + 1;
}
__device__ float twice(float x) {
    return x * 2;
}

__constant__ float taps[3] = {0.5f, 1.0f, 0.25f};
__device__ int counter = 7;
__device__ const float* table[2] = {taps, taps + 1};
__device__ Function functions[2] = {next, twice};

__device__ __noinline__ float polynomial(const float* x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum = sum * 2 + x[i];
    return sum;
}
__device__ __noinline__ Pair both(Pair p) {
    return {p.a * 2, p.b + 1};
}

extern "C" __global__ void features(const float* x, float* out, int n, Pair given) {
    __shared__ float buffer[128];
    float own[4];
    const int t = threadIdx.x;
    buffer[t] = x[t];
    __syncthreads();
    for (int i = 0; i < 4; i++) own[(i + t) & 3] = buffer[(t + i) % 128];
    const Pair pair = both({given.a, t});
    assert(n == 128);
    if (t == 3) printf("%d %s %.2f %lld 100%%\n", t, "text", 1.5, 1ll << 40);
    out[t] = polynomial(own, 4) + taps[t % 3] + pair.a + pair.b + table[1][0] + counter;
    if (t > 64) return;
    out[t] = functions[t & 1](out[t]);
}
