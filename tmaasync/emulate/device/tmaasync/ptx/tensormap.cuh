#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

// Finds a map that cannot be read. A map that was edited and not acquired is not found: the acquire
// before its use discards prefetched bytes.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
    tmaasync_emulate::check_map(map);
}

__device__ __forceinline__ void fence_proxy_tensormap_acquire_gpu(const TensorMap* map) {
    tmaasync_emulate::fence_map_acquire(map);
}

__device__ __forceinline__ void fence_proxy_tensormap_acquire_sys(const TensorMap* map) {
    tmaasync_emulate::fence_map_acquire(map);
}

}  // namespace tmaasync::ptx
