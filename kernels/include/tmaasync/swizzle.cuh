#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// The tensor map's numbers: CU_TENSOR_MAP_SWIZZLE_*. The last exists on sm_100 and later.
enum class Swizzle : int { kNone = 0, k32B = 1, k64B = 2, k128B = 3, k128BAtom32B = 4 };

// Bytes of one swizzled row; 16 without swizzle.
__device__ constexpr int span_bytes(Swizzle swizzle) {
    return swizzle >= Swizzle::k128B ? 128 : 16 << static_cast<int>(swizzle);
}

// Shared-memory alignment at which the pattern starts from its first row.
__device__ constexpr int alignment_bytes(Swizzle swizzle) {
    return swizzle == Swizzle::kNone ? 128 : 8 * span_bytes(swizzle);
}

// The swizzled offset of a byte of a box, both from the aligned start of the box: the number of its
// 16-byte unit is XORed with the number of its 128-byte line, of which 128B takes the lowest 3
// bits, 64B 2 and 32B 1. Atoms of 32 bytes stay whole: pairs of units are XORed, with 2 bits. Its
// own inverse.
template <Swizzle kSwizzle>
__device__ __forceinline__ constexpr u32 swizzled(u32 offset_bytes) {
    constexpr bool kHasAtoms = kSwizzle == Swizzle::k128BAtom32B;
    constexpr u32 kMask = kHasAtoms ? 3 : (1u << static_cast<int>(kSwizzle)) - 1;
    return offset_bytes ^ ((offset_bytes >> 7 & kMask) << (kHasAtoms ? 5 : 4));
}

}  // namespace tmaasync
