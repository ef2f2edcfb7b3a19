#pragma once

#include <tmaasync/operands/integers.cuh>

// The emulator has no L2. The values are the ones that the chip makes.
namespace tmaasync::ptx {

__device__ __forceinline__ u64 createpolicy_evict_first() {
    return 0x12F0000000000000;
}

__device__ __forceinline__ u64 createpolicy_evict_last() {
    return 0x14F0000000000000;
}

__device__ __forceinline__ u64 createpolicy_evict_normal() {
    return 0x1000000000000000;
}

}  // namespace tmaasync::ptx
