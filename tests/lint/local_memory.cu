// Registers that do not fit, and an array that is indexed at run time.
extern "C" __global__ void __launch_bounds__(1024, 2) spilled(float* p) {
    float values[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) values[i] = p[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) p[(63 - i) * 1024 + threadIdx.x] = values[i] * values[i ^ 5];
}

extern "C" __global__ void indexed(float* p, const int* order) {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = p[i];
    for (int i = 0; i < 16; ++i) values[order[i] & 15] += 1;
    for (int i = 0; i < 16; ++i) p[order[i]] = values[i];
}
