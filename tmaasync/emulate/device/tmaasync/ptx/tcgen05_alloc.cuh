#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/tcgen05_calls.hpp>

namespace tmaasync::ptx {

template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_alloc(u32 shared, u32 columns) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    tmaasync_emulate::tcgen05_alloc(kCtas, shared, columns);
}

template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_dealloc(u32 address, u32 columns) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    tmaasync_emulate::tcgen05_dealloc(kCtas, address, columns);
}

template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    tmaasync_emulate::tcgen05_relinquish(kCtas);
}

}  // namespace tmaasync::ptx
