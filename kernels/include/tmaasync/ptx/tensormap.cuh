#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

// PTX ISA: "prefetch". Bring the map into the descriptor cache.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Make a map that was written to global memory on the device usable by this thread.
__device__ __forceinline__ void fence_proxy_tensormap_acquire_gpu(const TensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// Make a map that the host wrote to global memory usable by this thread.
__device__ __forceinline__ void fence_proxy_tensormap_acquire_sys(const TensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

}  // namespace tmaasync::ptx
