#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ float ex2_approx_ftz(float x) {
    const float power = std::exp2(x);
    return power < 0x1p-126f ? 0 : power;
}

}  // namespace tmaasync::ptx
