#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "setmaxnreg" (sm_90a). All warps of the warpgroup execute it; the kernel needs
// __launch_bounds__(threads, 1), or the compiler ignores it.
namespace tmaasync::ptx {

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24, 32, ... 256");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24, 32, ... 256");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters) : "memory");
}

}  // namespace tmaasync::ptx
