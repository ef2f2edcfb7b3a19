#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

[[noreturn]] __device__ __forceinline__ void fail_beyond_cluster(u32 cta_rank) {
    char words[128];
    std::snprintf(
        words, sizeof(words),
        "mapa names CTA %u of a cluster of %u. Pass a rank below blocks_in_cluster()", cta_rank,
        tmaasync_emulate::current_thread().ctas
    );
    tmaasync_emulate::fail(words);
}

__device__ __forceinline__ u32 mapa(u32 shared, u32 cta_rank) {
    using namespace tmaasync_emulate;
    if (cta_rank >= current_thread().ctas) fail_beyond_cluster(cta_rank);
    return (shared & kOffsetMask) | (cta_rank + 1) << kRankShift;
}

// The windows of a cluster lie one after the other.
__device__ __forceinline__ u64 mapa(u64 address, u32 cta_rank) {
    using namespace tmaasync_emulate;
    const Thread& thread = current_thread();
    if (cta_rank >= thread.ctas) fail_beyond_cluster(cta_rank);
    const u32 offset = shared_address(reinterpret_cast<const void*>(address));
    const i64 ranks = i64{cta_rank} - i64{thread.rank};
    return reinterpret_cast<u64>(thread.window + ranks * i64{kWindowBytes} + offset);
}

__device__ __forceinline__ u32 getctarank(u32 remote) {
    using namespace tmaasync_emulate;
    const u32 above = remote >> kRankShift;
    return above == 0 ? current_thread().rank : above - 1;
}

}  // namespace tmaasync::ptx
