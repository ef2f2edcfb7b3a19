#pragma once

// Ping-pong scheduling: consumer warpgroups issue their MMAs one after the other, so that the
// epilogue or softmax of one overlaps the MMAs of another (CUTLASS's
// KernelTmaWarpSpecializedPingpong and OrderedSequenceBarrier; FlashAttention-3, section 3.1).
#include <tmaasync/warp.cuh>

namespace tmaasync {

// The order of kConsumers warpgroups at the tensor cores. Consumer i waits at named barrier
// kFirstBarrier + i; the barriers before that belong to one consumer each, and to __syncthreads.
template <int kConsumers>
struct MmaOrder {
    static constexpr u32 kFirstBarrier = 1 + kConsumers;
    static constexpr int kTwoWarpgroups = 2 * 128;  // the one that waits and the one that arrives

    __device__ __forceinline__ static void wait(int consumer) {
        if constexpr (kConsumers > 1) NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.sync();
    }

    // Lets the consumer of this number pass its wait.
    __device__ __forceinline__ static void release(int consumer) {
        if constexpr (kConsumers > 1) {
            NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.arrive();
        }
    }
};

}  // namespace tmaasync
