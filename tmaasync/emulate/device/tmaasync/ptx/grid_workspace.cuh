#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32* grid_barrier() {
    return tmaasync_emulate::grid_barrier();
}

__device__ __forceinline__ u32 grid_barrier_arrive(u32*, u32) {
    return tmaasync_emulate::grid_barrier_arrive();
}

__device__ __forceinline__ bool grid_barrier_try_wait(const volatile u32*, u32 before) {
    tmaasync_emulate::grid_barrier_wait(before);
    return true;
}

}  // namespace tmaasync::ptx
