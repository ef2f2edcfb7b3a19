// Warnings in the assembler's log: a serialised wgmma, a setmaxnreg without effect.
#include <tmaasync/warp.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

extern "C" __global__ void serialised(float* p, u64 a, u64 b) {
    float sums[64];
    for (int i = 0; i < 64; ++i) sums[i] = p[i];
    wgmma_fence();
    for (int k = 0; k < static_cast<int>(p[0]); ++k) {
        wgmma_ss_atom<bfloat16>(sums, a + k, b, true);
        sums[3] += 1;
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    for (int i = 0; i < 64; ++i) p[i * 128 + threadIdx.x] = sums[i];
}

extern "C" __global__ void ignored(float* p) {
    if (threadIdx.x < 128) {
        release_registers<24>();
    } else {
        claim_registers<240>();
        p[threadIdx.x] = 1;
    }
}
