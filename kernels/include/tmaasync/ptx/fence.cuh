#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "membar / fence".
namespace tmaasync::ptx {

// Make mbarrier.init visible to the cluster and to the async proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Order this thread's earlier accesses to shared memory before later ones of TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Order this thread's earlier accesses to global memory before later ones of TMA.
__device__ __forceinline__ void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace tmaasync::ptx
