#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ float rcp_approx_ftz(float x) {
    const auto flushed = [](float y) {
        return std::fabs(y) < 0x1p-126f ? std::copysign(0.0f, y) : y;
    };
    return flushed(1 / flushed(x));
}

}  // namespace tmaasync::ptx
