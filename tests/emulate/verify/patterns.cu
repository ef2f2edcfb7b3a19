// Small kernels that synchronise in one way each; `defect` chooses a wrong form.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// A ring of two stages: thread 0 fills, warps 1 and 2 read.
extern "C" __global__ void ring(const int* source, int* target, int fills, int defect) {
    __shared__ alignas(128) int stage[2][32];
    __shared__ SharedMemBarrier full[2], empty[2];
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) full[i].init(1), empty[i].init(defect == 1 ? 1 : 2);
    }
    fence_barrier_init();
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        if (lane) return;
        for (int fill = 0; fill < fills; ++fill) {
            const int i = fill % 2;
            empty[i].wait((fill / 2 + 1 + (defect == 2)) % 2);
            if (defect == 3 && fill == 3) full[i].arrive();
            full[i].expect_bytes(sizeof(stage[i]));
            tma_load_1d(source + fill * 32, full[i], &stage[i], sizeof(stage[i]));
        }
    } else {
        for (int fill = 0; fill < fills; ++fill) {
            const int i = fill % 2;
            full[i].wait(fill / 2 % 2);
            const int value = stage[i][lane];
            if (warp == 1) target[fill * 32 + lane] = value;
            __syncwarp();
            if (defect == 4 && warp == 2 && fill == 1) continue;
            if (lane == 0) empty[i].arrive();
        }
    }
}

// Blocks take tickets; the last one adds up what all have written.
extern "C" __global__ void last_block(
    const int* source, int* parts, int* count, int* total, int defect
) {
    __shared__ int ticket;
    parts[blockIdx.x] = source[blockIdx.x];
    if (defect != 1) __threadfence();
    ticket = atomicAdd(count, 1);
    if (defect != 2) __threadfence();
    if (ticket != int(gridDim.x) - 1) return;
    int sum = 0;
    for (int i = 0; i < int(gridDim.x); ++i) sum += *(volatile int*)&parts[i];
    *total = sum;
}

// Two warps take two locks.
extern "C" __global__ void locks(int* lock, int* counter, int defect) {
    if (threadIdx.x % 32) return;
    const int warp = threadIdx.x / 32, first = defect == 1 ? warp : 0;
    while (atomicCAS(&lock[first], 0, 1)) {}
    while (atomicCAS(&lock[1 - first], 0, 1)) {}
    __threadfence();
    ++*(volatile int*)counter;
    __threadfence();
    atomicExch(&lock[1 - first], 0);
    atomicExch(&lock[first], 0);
}

// Four warps take tickets; in one order of them, as a decimal number, an arrival is missing.
extern "C" __global__ void tickets(int* next, int wanted) {
    __shared__ SharedMemBarrier ready;
    __shared__ int order[4];
    if (threadIdx.x == 0) ready.init(2);
    if (threadIdx.x % 32 == 0) order[atomicAdd(next, 1)] = threadIdx.x / 32;
    fence_barrier_init();
    __syncthreads();
    if (threadIdx.x) return;
    const int found = order[0] * 1000 + order[1] * 100 + order[2] * 10 + order[3];
    ready.arrive();
    if (found != wanted) ready.arrive();
    ready.wait(0);
}

// Two warps take all tickets; in one order of their takers, as bits, an arrival is missing.
extern "C" __global__ void rounds(int* next, int wanted) {
    __shared__ SharedMemBarrier ready;
    __shared__ int takers[4];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) ready.init(2);
    if (threadIdx.x % 32 == 0) {
        for (int ticket; (ticket = atomicAdd(next, 1)) < 4;) takers[ticket] = warp;
    }
    fence_barrier_init();
    __syncthreads();
    if (threadIdx.x) return;
    const int found = takers[0] << 3 | takers[1] << 2 | takers[2] << 1 | takers[3];
    ready.arrive();
    if (found != wanted) ready.arrive();
    ready.wait(0);
}
