#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "rcp". One instruction of the special function unit, 16 per clock and SM. The error is 1
// ulp at most; where x or the result is below 2^-126, they are 0. __fdividef takes up to four
// instructions more, to scale around that.
namespace tmaasync::ptx {

__device__ __forceinline__ float rcp_approx_ftz(float x) {
    float inverse;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

}  // namespace tmaasync::ptx
