// Claims of registers that a warpgroup cannot have, of which the assembler says nothing.
#include <tmaasync/warp.cuh>

using namespace tmaasync;

extern "C" __global__ void __launch_bounds__(384, 2) two_ctas_of_an_sm(float* p) {
    if (threadIdx.x < 128) {
        release_registers<24>();
    } else {
        claim_registers<232>();
        p[threadIdx.x] = 1;
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) nobody_releases(float* p) {
    if (threadIdx.x >= 128) claim_registers<176>();
    p[threadIdx.x] = 1;
}

extern "C" __global__ void __launch_bounds__(384, 1) fits(float* p) {
    if (threadIdx.x < 128) {
        release_registers<24>();
    } else {
        claim_registers<240>();
        p[threadIdx.x] = 1;
    }
}
