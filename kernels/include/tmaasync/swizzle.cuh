#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// The tensor map's numbers: CU_TENSOR_MAP_SWIZZLE_*.
enum class Swizzle : int { kNone = 0, k32B = 1, k64B = 2, k128B = 3 };

// Bytes of one swizzled row; 16 without swizzle.
__device__ constexpr int span_bytes(Swizzle swizzle) {
    return 16 << static_cast<int>(swizzle);
}

// Shared-memory alignment at which the pattern starts from its first row.
__device__ constexpr int alignment_bytes(Swizzle swizzle) {
    return swizzle == Swizzle::kNone ? 128 : 8 * span_bytes(swizzle);
}

// The swizzled offset of a byte of a box, both from the aligned start of the box: the number of its
// 16-byte unit is XORed with the number of its 128-byte line, of which 128B takes the lowest 3
// bits, 64B 2 and 32B 1. Its own inverse.
template <Swizzle kSwizzle>
__device__ __forceinline__ constexpr u32 swizzled(u32 offset_bytes) {
    constexpr u32 kMask = (1u << static_cast<int>(kSwizzle)) - 1;
    return offset_bytes ^ ((offset_bytes >> 7 & kMask) << 4);
}

}  // namespace tmaasync
