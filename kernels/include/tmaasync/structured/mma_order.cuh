#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync {

// Ping-pong scheduling: kConsumers warpgroups issue their MMAs in a fixed order, so that the
// epilogue or softmax of one overlaps the MMAs of another (CUTLASS's
// KernelTmaWarpSpecializedPingpong and OrderedSequenceBarrier; FlashAttention-3, section 3.1).
// Consumer i waits at named barrier kFirstBarrier + i. Barrier 0 belongs to __syncthreads, and the
// barriers from 1 to kConsumers to one consumer each.
template <int kConsumers>
struct MmaOrder {
    static constexpr u32 kFirstBarrier = 1 + kConsumers;
    static constexpr int kTwoWarpgroups = 2 * 128;  // one waits, the other arrives

    __device__ __forceinline__ static void wait(int consumer) {
        if constexpr (kConsumers > 1) NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.sync();
    }

    // Let this consumer pass its wait.
    __device__ __forceinline__ static void release(int consumer) {
        if constexpr (kConsumers > 1) {
            NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.arrive();
        }
    }
};

}  // namespace tmaasync
