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

}  // namespace tmaasync::ptx
