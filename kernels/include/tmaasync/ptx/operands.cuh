#pragma once

#include <tmaasync/ptx/integers.cuh>

// What instructions take besides addresses. No instruction is here, so that this header serves
// every implementation of the others.
namespace tmaasync::ptx {

// The 128 opaque bytes of a CUtensorMap. As a kernel parameter it must be a
// `const __grid_constant__`: otherwise the compiler copies it to local memory.
struct alignas(128) TensorMap {
    u64 words[16];
};
static_assert(sizeof(TensorMap) == 128, "CUtensorMap is 128 bytes");

// Where a box starts in its tensor, innermost coordinate first.
template <int kRank>
struct Coordinates {
    i32 values[kRank];

    // The origin.
    __device__ constexpr Coordinates() : values{} {}

    template <typename... I>
    __device__ constexpr Coordinates(I... coordinates) : values{static_cast<i32>(coordinates)...} {
        static_assert(sizeof...(I) == kRank, "one coordinate per dimension, innermost first");
    }
};

// The arithmetic is that of the map's element type, not of the kernel's.
enum class ReduceOp { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

// Where cp.async leaves what it read: in all caches (.ca), or not in L1 (.cg).
enum class CacheLevels { kAll, kL2 };

// How much around what cp.async reads is brought into L2: a hint.
enum class L2Prefetch { kNone, k64B, k128B, k256B };

}  // namespace tmaasync::ptx
