#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ bool elect_sync() {
    return tmaasync_emulate::elect();
}

__device__ __forceinline__ void barrier_sync(u32 barrier, u32 threads) {
    tmaasync_emulate::named_barrier_sync(barrier, threads);
}

__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 threads) {
    tmaasync_emulate::named_barrier_arrive(barrier, threads);
}

// Grids run one after the other, and the runtime notes who has waited.
__device__ __forceinline__ void griddepcontrol_wait() {
    tmaasync_emulate::wait_for_grids();
}

__device__ __forceinline__ void griddepcontrol_launch_dependents() {}

}  // namespace tmaasync::ptx
