#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/special_functions.hpp>

namespace tmaasync::ptx {

__device__ __forceinline__ float ex2_approx_ftz(float x) {
    return tmaasync_emulate::special::ex2(x);
}

}  // namespace tmaasync::ptx
