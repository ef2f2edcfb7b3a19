#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// Maximum dynamic shared memory of a CTA on sm_90.
constexpr int kMaxSharedBytes = 227 * 1024;

// The strictest alignment that a swizzled tile needs.
constexpr int kSharedAlignment = 1024;

// The dynamic shared memory of this CTA, seen as one struct. Nothing is constructed.
template <typename T>
__device__ __forceinline__ T& dynamic_shared() {
    static_assert(alignof(T) <= kSharedAlignment, "shared memory is aligned to 1024 bytes");
    extern __shared__ __align__(1024) unsigned char tmaasync_dynamic_shared[];
    return *reinterpret_cast<T*>(tmaasync_dynamic_shared);
}

}  // namespace tmaasync
