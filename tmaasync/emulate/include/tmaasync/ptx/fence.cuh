#pragma once

#include <tmaasync/ptx/integers.cuh>

// Memory is in order here. That a fence is missing is a matter for race detection.
namespace tmaasync::ptx {

__device__ __forceinline__ void fence_mbarrier_init() {}

__device__ __forceinline__ void fence_proxy_async_shared() {}

__device__ __forceinline__ void fence_proxy_async_global() {}

}  // namespace tmaasync::ptx
