#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/ptx/setmaxnreg.cuh>
#include <tmaasync/ptx/sync.cuh>

namespace tmaasync {

// True in exactly one lane of a converged warp.
__device__ __forceinline__ bool elect() {
    return ptx::elect_sync();
}

// This thread's warp, as a value the compiler knows to be the same in all lanes.
__device__ __forceinline__ u32 warp_index() {
    return __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
}

__device__ __forceinline__ u32 lane_index() {
    return threadIdx.x % 32;
}

// This thread's group of four warps, the unit that executes wgmma.
__device__ __forceinline__ u32 warpgroup_index() {
    return __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
}

// A hardware barrier among `kThreads` threads of the CTA; 0 is __syncthreads, 1 to 15 are free.
template <int kThreads>
struct NamedBarrier {
    static_assert(kThreads % 32 == 0, "whole warps");

    u32 id;

    __device__ __forceinline__ void sync() const {
        check_index("id", id, 16);
        ptx::barrier_sync(id, kThreads);
    }
    __device__ __forceinline__ void arrive() const {
        check_index("id", id, 16);
        ptx::barrier_arrive(id, kThreads);
    }
};

// Gives registers back to the CTA, or takes them; all four warps of the warpgroup, sm_90a,
// and a kernel with __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
    ptx::setmaxnreg_dec<kRegisters>();
}

template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
    ptx::setmaxnreg_inc<kRegisters>();
}

// Programmatic dependent launch: wait for the grids before this one, or let the next one start.
__device__ __forceinline__ void wait_for_previous_grids() {
    ptx::griddepcontrol_wait();
}

__device__ __forceinline__ void launch_dependent_grids() {
    ptx::griddepcontrol_launch_dependents();
}

}  // namespace tmaasync
