#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "Special Registers". Registers of clusters are in cluster.cuh.
namespace tmaasync::ptx {

// Nanoseconds, the same clock on every SM.
__device__ __forceinline__ u64 globaltimer() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

// Cycles of this SM, the lower 32 bits.
__device__ __forceinline__ u32 clock() {
    u32 cycles;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
    return cycles;
}

// Cycles of this SM.
__device__ __forceinline__ u64 clock64() {
    u64 cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    return cycles;
}

// The number of this SM.
__device__ __forceinline__ u32 smid() {
    u32 sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm)::"memory");
    return sm;
}

// The warp slot of the SM in which this warp runs.
__device__ __forceinline__ u32 warpid() {
    u32 slot;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot)::"memory");
    return slot;
}

// Bytes of dynamic shared memory that this launch asked for.
__device__ __forceinline__ u32 dynamic_smem_size() {
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

}  // namespace tmaasync::ptx
