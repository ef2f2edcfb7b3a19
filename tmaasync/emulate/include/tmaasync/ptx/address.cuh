#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ u32 mapa(u32 shared, u32 cta_rank) {
    auto& fiber = tmaasync_emulate::current_fiber();
    if (cta_rank >= fiber.cluster->ctas().size()) {
        fiber.cluster->fail(fiber, "mapa names a CTA that the cluster does not have");
    }
    return (shared & tmaasync_emulate::kOffsetMask) | (cta_rank + 1)
                                                          << tmaasync_emulate::kRankShift;
}

}  // namespace tmaasync::ptx
