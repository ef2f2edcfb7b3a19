#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ u32 mapa(u32 shared, u32 cta_rank) {
    using namespace tmaasync_emulate;
    if (cta_rank >= current_thread().ctas) {
        fail("mapa names a CTA that the cluster does not have");
    }
    return (shared & kOffsetMask) | (cta_rank + 1) << kRankShift;
}

}  // namespace tmaasync::ptx
