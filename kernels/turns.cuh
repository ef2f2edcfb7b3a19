#pragma once

// Consumers take turns at the tensor cores: one multiplies while the others do something else. A
// kernel includes this where CONSUMERS and kGroupThreads are known.
namespace tmaasync {

// Of the named barriers: before it comes one of every group.
constexpr u32 kFirstTurn = 1 + CONSUMERS;

__device__ __forceinline__ void take_turn(int group) {
    if constexpr (CONSUMERS > 1) NamedBarrier<2 * kGroupThreads>{kFirstTurn + group}.sync();
}

__device__ __forceinline__ void pass_turn_to(int group) {
    if constexpr (CONSUMERS > 1) NamedBarrier<2 * kGroupThreads>{kFirstTurn + group}.arrive();
}

}  // namespace tmaasync
