#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "ex2". One instruction of the special function unit, 16 per clock and SM. The error is
// about 2^-22 of the result; results below 2^-126 are 0.
namespace tmaasync::ptx {

__device__ __forceinline__ float ex2_approx_ftz(float x) {
    float power;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

}  // namespace tmaasync::ptx
