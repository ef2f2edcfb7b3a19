#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/special_functions.hpp>

namespace tmaasync::ptx {

__device__ __forceinline__ float rcp_approx_ftz(float x) {
    return tmaasync_emulate::special::rcp(x);
}

}  // namespace tmaasync::ptx
