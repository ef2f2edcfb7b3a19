#pragma once

#include <tmaasync/operands/integers.cuh>

// The host's compiler allots registers.
namespace tmaasync::ptx {

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24, 32, ... 256");
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "24, 32, ... 256");
}

}  // namespace tmaasync::ptx
