#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void wgmma_fence() {}

__device__ __forceinline__ void wgmma_commit_group() {
    tmaasync_emulate::commit_mmas(tmaasync_emulate::current_fiber());
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
    static_assert(kPending >= 0 && kPending <= 7, "0 to 7 groups");
    tmaasync_emulate::wait_for_mmas(tmaasync_emulate::current_fiber(), kPending);
}

__device__ __forceinline__ void wgmma_fence_operand(float& accumulator) {
    (void)accumulator;
}

}  // namespace tmaasync::ptx
