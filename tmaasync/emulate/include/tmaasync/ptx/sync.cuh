#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ bool elect_sync() {
    return tmaasync_emulate::elect();
}

__device__ __forceinline__ void barrier_sync(u32 barrier, u32 threads) {
    tmaasync_emulate::arrive_at_named(tmaasync_emulate::current_fiber(), barrier, threads, true);
}

__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 threads) {
    tmaasync_emulate::arrive_at_named(tmaasync_emulate::current_fiber(), barrier, threads, false);
}

// Grids run one after the other.
__device__ __forceinline__ void griddepcontrol_wait() {}

__device__ __forceinline__ void griddepcontrol_launch_dependents() {}

}  // namespace tmaasync::ptx
