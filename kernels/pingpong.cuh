#pragma once

// Consumers take turns at the tensor cores: one multiplies while the others do something else.
#include <tmaasync/warp.cuh>

namespace tmaasync {

// Of the named barriers: before it comes one of every group.
template <int kGroups>
struct TurnsOf {
    static constexpr u32 kFirstTurn = 1 + kGroups;
    static constexpr int kTwoGroupsThreads = 2 * 128;

    __device__ __forceinline__ static void take(int group) {
        if constexpr (kGroups > 1) NamedBarrier<kTwoGroupsThreads>{kFirstTurn + group}.sync();
    }

    __device__ __forceinline__ static void pass_to(int group) {
        if constexpr (kGroups > 1) NamedBarrier<kTwoGroupsThreads>{kFirstTurn + group}.arrive();
    }
};

}  // namespace tmaasync
