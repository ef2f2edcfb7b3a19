#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/ptx/grid_workspace.cuh>

namespace tmaasync {

// Synchronise all threads of the grid: their earlier writes to global memory are visible after it.
// Every thread of every block calls it, and the launch is a cooperative one (cooperative=True).
// Data that threads wrote and TMA reads next, or the reverse, also needs a proxy fence.
//
// The sign bit of the barrier changes when all blocks have arrived: they add up to 2^31, whichever
// comes last, so that the lower bits are zero again.
__device__ __forceinline__ void sync_grid() {
    __syncthreads();
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        u32* const barrier = ptx::grid_barrier();
        check(barrier != nullptr, "cooperative", 0, "for sync_grid() it must be", 1);
        const u32 others = gridDim.x * gridDim.y * gridDim.z - 1;
        const bool is_first = blockIdx.x + blockIdx.y + blockIdx.z == 0;
        __threadfence();
        const u32 before = ptx::grid_barrier_arrive(barrier, is_first ? 0x80000000 - others : 1);
        while (!ptx::grid_barrier_try_wait(barrier, before)) __nanosleep(32);
        __threadfence();
    }
    __syncthreads();
}

}  // namespace tmaasync
