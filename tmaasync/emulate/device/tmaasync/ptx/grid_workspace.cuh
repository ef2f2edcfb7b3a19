#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32* grid_barrier() {
    return tmaasync_emulate::grid_barrier();
}

}  // namespace tmaasync::ptx
