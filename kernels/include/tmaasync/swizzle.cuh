#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// The tensor map's numbers: CU_TENSOR_MAP_SWIZZLE_*. The last three exist on sm_100a and sm_103a.
enum class Swizzle : int {
    kNone = 0,
    k32B = 1,
    k64B = 2,
    k128B = 3,
    k128BAtom32B = 4,
    k128BAtom32BFlip8B = 5,
    k128BAtom64B = 6,
};

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
// bits, 64B 2 and 32B 1. Atoms of 32 or 64 bytes stay whole: their number is XORed, with 2 bits or
// 1. Flip8B also exchanges the halves of the units of odd lines. Its own inverse.
template <Swizzle kSwizzle>
__device__ __forceinline__ constexpr u32 swizzled(u32 offset_bytes) {
    constexpr bool kFlips = kSwizzle == Swizzle::k128BAtom32BFlip8B;
    constexpr u32 kShift = kSwizzle == Swizzle::k128BAtom64B   ? 6
                           : kSwizzle >= Swizzle::k128BAtom32B ? 5
                                                               : 4;
    constexpr u32 kMask = (1u << (kShift > 4 ? 7 - kShift : static_cast<int>(kSwizzle))) - 1;
    const u32 exchanged = kFlips ? offset_bytes ^ (offset_bytes >> 7 & 1) << 3 : offset_bytes;
    return exchanged ^ ((offset_bytes >> 7 & kMask) << kShift);
}

}  // namespace tmaasync
