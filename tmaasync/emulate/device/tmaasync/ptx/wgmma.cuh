#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void wgmma_fence() {
    tmaasync_emulate::mma_fence();
}

__device__ __forceinline__ void wgmma_commit_group() {
    tmaasync_emulate::mma_commit();
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
    static_assert(kPending >= 0 && kPending <= 7, "0 to 7 groups");
    tmaasync_emulate::mma_wait(kPending);
}

__device__ __forceinline__ void wgmma_fence_operand(float& held) {
    (void)held;
}
__device__ __forceinline__ void wgmma_fence_operand(u32& held) {
    (void)held;
}
__device__ __forceinline__ void wgmma_fence_operand(int& held) {
    (void)held;
}

}  // namespace tmaasync::ptx
