#pragma once

#include <tmaasync/operands/integers.cuh>

// The host's compiler allots registers; the runtime counts the CTA's registers.
namespace tmaasync::ptx {

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
    static_assert(
        kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
        "setmaxnreg takes multiples of 8 from 24 to 256"
    );
    tmaasync_emulate::set_max_registers(true, kRegisters);
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
    static_assert(
        kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0,
        "setmaxnreg takes multiples of 8 from 24 to 256"
    );
    tmaasync_emulate::set_max_registers(false, kRegisters);
}

}  // namespace tmaasync::ptx
