#include <tmaasync/tcgen05.cuh>
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern "C" __global__ void leaks(float* p) {
    __shared__ unsigned slot;
    if (threadIdx.x < 32) ptx::tcgen05_alloc<1>(ptx::shared_address(&slot), 32);
    __syncthreads();
    unsigned word[1] = {threadIdx.x};
    ptx::tcgen05_st<ptx::Tcgen05Shape::k32x32b>(slot, word);
    ptx::tcgen05_ld<ptx::Tcgen05Shape::k32x32b>(word, slot);
    p[threadIdx.x] = word[0];
}

extern "C" __global__ void complete(float* p) {
    __shared__ unsigned slot;
    if (threadIdx.x < 32) ptx::tcgen05_alloc<1>(ptx::shared_address(&slot), 32);
    __syncthreads();
    unsigned word[1] = {threadIdx.x};
    ptx::tcgen05_st<ptx::Tcgen05Shape::k32x32b>(slot, word);
    ptx::tcgen05_wait_st();
    ptx::tcgen05_ld<ptx::Tcgen05Shape::k32x32b>(word, slot);
    ptx::tcgen05_wait_ld();
    p[threadIdx.x] = word[0];
    __syncthreads();
    if (threadIdx.x < 32) ptx::tcgen05_dealloc<1>(slot, 32);
}
