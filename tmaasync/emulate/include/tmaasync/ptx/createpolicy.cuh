#pragma once

#include <tmaasync/operands/integers.cuh>

// There is no L2 to keep anything in: the values are the ones that the chip makes.
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
