#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void fence_mbarrier_init() {
    tmaasync_emulate::fence_mbarrier_init();
}

__device__ __forceinline__ void fence_proxy_async_shared() {
    tmaasync_emulate::fence_proxy_async_shared();
}

__device__ __forceinline__ void fence_proxy_async_global() {
    tmaasync_emulate::fence_proxy_async_global();
}

}  // namespace tmaasync::ptx
