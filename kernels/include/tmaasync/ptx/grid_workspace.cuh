#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "%envreg<32>". In a cooperative launch the driver writes the address of the launch's own
// workspace into %envreg1 (upper half) and %envreg2, as cooperative_groups/details/driver_abi.h
// reads it: its size in bytes, then the word of the grid's barrier, which begins with zero.
namespace tmaasync::ptx {

// Null in other launches.
__device__ __forceinline__ u32* grid_barrier() {
    u32 upper, lower;
    asm("mov.u32 %0, %%envreg1;" : "=r"(upper));
    asm("mov.u32 %0, %%envreg2;" : "=r"(lower));
    u32* const workspace = reinterpret_cast<u32*>(u64{upper} << 32 | lower);
    return workspace == nullptr ? nullptr : workspace + 1;
}

// Arrives for a block, whose share of 2^31 it adds. Returns the word as it was.
__device__ __forceinline__ u32 grid_barrier_arrive(u32* barrier, u32 share) {
    return atomicAdd(barrier, share);
}

// True if the highest bit has changed.
__device__ __forceinline__ bool grid_barrier_try_wait(const volatile u32* barrier, u32 before) {
    return ((before ^ *barrier) & 0x80000000) != 0;
}

}  // namespace tmaasync::ptx
