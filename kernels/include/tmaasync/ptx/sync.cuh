#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

// PTX ISA: "elect.sync". True in exactly one lane of a converged warp.
__device__ __forceinline__ bool elect_sync() {
    u32 elected;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "elect.sync _|p, 0xffffffff;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(elected)
        :
        : "memory"
    );
    return elected != 0;
}

// PTX ISA: "barrier". Barrier 0 is __syncthreads; 1 to 15 are free. Waits for `threads` arrivals.
__device__ __forceinline__ void barrier_sync(u32 barrier, u32 threads) {
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Count towards barrier_sync of the same barrier without waiting.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 threads) {
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// PTX ISA: "griddepcontrol". Blocks until every grid this one depends on has completed.
__device__ __forceinline__ void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Allow the grids that depend on this one to start.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace tmaasync::ptx
