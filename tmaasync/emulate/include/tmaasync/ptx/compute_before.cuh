#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void compute_before(float) {}

}  // namespace tmaasync::ptx
