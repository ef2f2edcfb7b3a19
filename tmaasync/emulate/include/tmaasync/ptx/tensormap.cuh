#pragma once

#include <tmaasync/ptx/integers.cuh>
#include <tmaasync/ptx/operands.cuh>

namespace tmaasync::ptx {

// A map that cannot be read is found here already.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
    tmaasync_emulate::check_map(map);
}

__device__ __forceinline__ void fence_proxy_tensormap_acquire_gpu(const TensorMap* map) {
    (void)map;
    tmaasync_emulate::fence_maps_acquire();
}

__device__ __forceinline__ void fence_proxy_tensormap_acquire_sys(const TensorMap* map) {
    (void)map;
    tmaasync_emulate::fence_maps_acquire();
}

}  // namespace tmaasync::ptx
