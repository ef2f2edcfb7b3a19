#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u64 ld_volatile_shared(u32 shared) {
    return *reinterpret_cast<const volatile u64*>(tmaasync_emulate::shared_pointer(shared));
}

__device__ __forceinline__ void ld_volatile_shared_v2(u32 shared, u32& first, u32& second) {
    const auto* words =
        reinterpret_cast<const volatile u32*>(tmaasync_emulate::shared_pointer(shared));
    first = words[0];
    second = words[1];
}

__device__ __forceinline__ void ld_shared_v2(u32 shared, u64& low, u64& high) {
    using Pair = unsigned __int128;
    const Pair read = *reinterpret_cast<const Pair*>(tmaasync_emulate::shared_pointer(shared));
    low = static_cast<u64>(read);
    high = static_cast<u64>(read >> 64);
}

}  // namespace tmaasync::ptx
