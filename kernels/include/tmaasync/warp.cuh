#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/ptx/setmaxnreg.cuh>
#include <tmaasync/ptx/sync.cuh>

namespace tmaasync {

// This thread's number in its block, x fastest. A block of two or three dimensions passes their
// number, here and below; with one, as most blocks have, nothing is computed.
template <int kBlockSides = 1>
__device__ __forceinline__ u32 thread_index() {
    static_assert(kBlockSides >= 1 && kBlockSides <= 3, "a block has 1 to 3 sides");
    u32 index = threadIdx.x;
    if constexpr (kBlockSides == 2) index += blockDim.x * threadIdx.y;
    if constexpr (kBlockSides == 3) {
        index += blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    return index;
}

// This thread's warp, as a value the compiler knows to be the same in all lanes. The whole warp.
template <int kBlockSides = 1>
__device__ __forceinline__ u32 warp_index() {
    return __shfl_sync(0xffffffff, thread_index<kBlockSides>() / 32, 0);
}

template <int kBlockSides = 1>
__device__ __forceinline__ u32 lane_index() {
    return thread_index<kBlockSides>() % 32;
}

// This thread's group of four warps, the unit that executes wgmma. The whole warp.
template <int kBlockSides = 1>
__device__ __forceinline__ u32 warpgroup_index() {
    return __shfl_sync(0xffffffff, thread_index<kBlockSides>() / 128, 0);
}

// True in exactly one lane of a converged warp.
__device__ __forceinline__ bool elect() {
    return ptx::elect_sync();
}

// True in one thread of each kExtent: 0 means of the block, 32 of each warp, more of each group of
// ceil(kExtent / 32) warps, counted from the block's first. Called by whole warps, converged.
template <int kExtent = 0, int kBlockSides = 1>
__device__ __forceinline__ bool elect_one() {
    static_assert(kExtent >= 0, "threads of a group; 0 for the block");
    constexpr u32 kWarps = (kExtent + 31) / 32;
    if constexpr (kWarps == 0) {
        return warp_index<kBlockSides>() == 0 && elect();
    } else if constexpr (kWarps == 1) {
        return elect();
    } else {
        return warp_index<kBlockSides>() % kWarps == 0 && elect();
    }
}

// A hardware barrier among `kThreads` threads of the CTA; 0 is __syncthreads, 1 to 15 are free.
template <int kThreads>
struct NamedBarrier {
    static_assert(kThreads % 32 == 0, "whole warps");

    u32 id;

    __device__ __forceinline__ void sync() const {
        check_index("id", id, 16);
        const instrument::TracedWait traced(instrument::TraceKind::kNamedWait, id);
        ptx::barrier_sync(id, kThreads);
    }
    __device__ __forceinline__ void arrive() const {
        check_index("id", id, 16);
        instrument::trace_warp(instrument::TraceKind::kNamedArrive, id);
        ptx::barrier_arrive(id, kThreads);
    }
};

// Release registers to the CTA, or claim them (setmaxnreg): all four warps of the warpgroup,
// sm_90a, and a kernel with __launch_bounds__(threads, 1). RegisterSplit on the host computes
// numbers that fit: a claim of more than the CTA has waits for ever. 0 changes nothing.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
    if constexpr (kRegisters != 0) ptx::setmaxnreg_dec<kRegisters>();
}

template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
    if constexpr (kRegisters != 0) ptx::setmaxnreg_inc<kRegisters>();
}

// Programmatic dependent launch: wait for the grids before this one, or let the next one start.
__device__ __forceinline__ void wait_for_previous_grids() {
    ptx::griddepcontrol_wait();
}

__device__ __forceinline__ void launch_dependent_grids() {
    ptx::griddepcontrol_launch_dependents();
}

}  // namespace tmaasync
