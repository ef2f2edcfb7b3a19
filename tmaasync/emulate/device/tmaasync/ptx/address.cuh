#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ u64 mul_wide(u32 a, u32 b) {
    return u64{a} * b;
}

__device__ __forceinline__ u32 mapa(u32 shared, u32 cta_rank) {
    using namespace tmaasync_emulate;
    if (cta_rank >= current_thread().ctas) fail_beyond_cluster(cta_rank);
    if (is_no_shared_address(shared)) return shared;
    return (shared & kOffsetMask) | cta_rank << kRankShift;
}

__device__ __forceinline__ u64 mapa(u64 address, u32 cta_rank) {
    const void* const pointer = reinterpret_cast<const void*>(address);
    return reinterpret_cast<u64>(tmaasync_emulate::in_shared_of(pointer, cta_rank));
}

__device__ __forceinline__ u32 even_cta_of_pair(u32 shared) {
    return shared & 0xfeffffff;
}

__device__ __forceinline__ u32 getctarank(u32 remote) {
    return remote >> tmaasync_emulate::kRankShift;
}

}  // namespace tmaasync::ptx
