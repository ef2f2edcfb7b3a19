#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u64 ld_volatile_shared(u32 shared) {
    return *reinterpret_cast<const volatile u64*>(
        tmaasync_emulate::current_thread().window + shared
    );
}

__device__ __forceinline__ void ld_volatile_shared_v2(u32 shared, u32& first, u32& second) {
    const auto* words =
        reinterpret_cast<const volatile u32*>(tmaasync_emulate::current_thread().window + shared);
    first = words[0];
    second = words[1];
}

}  // namespace tmaasync::ptx
