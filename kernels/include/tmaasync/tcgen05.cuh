#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/ptx/tcgen05_mma.cuh>
#include <tmaasync/tcgen05_descriptor.cuh>
#include <tmaasync/tmem.cuh>

// Matrix multiply-accumulate of Blackwell (tcgen05, sm_100a and sm_103a): B is in shared memory, A
// in shared or tensor memory, the accumulators in tensor memory. One thread multiplies and commits.
namespace tmaasync {

// Order the thread's earlier tcgen05 operations before a barrier, and later ones after it. A
// barrier that tcgen05_commit() arrives on needs the second alone.
__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
    ptx::tcgen05_fence_before_thread_sync();
}
__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
    ptx::tcgen05_fence_after_thread_sync();
}

// Multiply all rows of A by all rows of B (columns of the result), over the whole depth, one
// instruction per step along K: D = A B, and A B + D if `accumulate`. In a pair of CTAs (kCtas 2)
// one of them issues it: each has its rows of A and half of the columns of B at the same offsets.
// The instructions run asynchronously: after tcgen05_commit() a barrier completes when they have.
// Operands that were written by ordinary stores need fence_async_view_proxy() first.
template <
    typename OperandA,
    typename OperandB,
    int kCtas = 1,
    typename T,
    int kN,
    typename SharedA,
    typename SharedB>
__device__ __forceinline__ void tcgen05_mma(
    const TmemTile<T, kN>& accumulators, const SharedA& a, const SharedB& b, bool accumulate
) {
    constexpr int kRows = kCtas * OperandA::kExtent;
    static_assert(OperandA::kDepth == OperandB::kDepth, "A and B are equally deep");
    static_assert(
        OperandA::kExtent == 128, "accumulators have 128 rows, one in each lane of tensor memory"
    );
    static_assert(kN == kCtas * OperandB::kExtent, "as many accumulators as B has columns");
    using A = typename OperandA::Element;
    using B = typename OperandB::Element;
    constexpr u32 kInstruction = tcgen05_instruction_descriptor<A, B, T, kRows, kN, kCtas>(
        {OperandA::kMajor, OperandB::kMajor}
    );
    const u64 start_a = OperandA::descriptor(a), start_b = OperandB::descriptor_near(a, b);
#pragma unroll
    for (int step = 0; step < OperandA::kSteps; ++step) {
        ptx::tcgen05_mma<Tcgen05TypeOf<A>::kKind, kCtas>(
            accumulators.address, start_a + OperandA::step_offset(step),
            start_b + OperandB::step_offset(step), kInstruction, accumulate || step > 0
        );
    }
}

// The same with A in tensor memory, K contiguous: rows of kWords words of elements of type A, which
// were stored and awaited (tmem_wait_stores()) before a barrier with its fences.
template <typename A, typename OperandB, typename T, int kN, int kWords, typename SharedB>
__device__ __forceinline__ void tcgen05_mma(
    const TmemTile<T, kN>& accumulators,
    const TmemTile<u32, kWords>& a,
    const SharedB& b,
    bool accumulate
) {
    constexpr int kStepWords = 8;  // 32 bytes of K
    static_assert(
        kWords * static_cast<int>(sizeof(u32) / sizeof(A)) == OperandB::kDepth,
        "A and B are equally deep"
    );
    static_assert(kN == OperandB::kExtent, "as many accumulators as B has columns");
    using B = typename OperandB::Element;
    constexpr u32 kInstruction =
        tcgen05_instruction_descriptor<A, B, T, 128, kN>({Major::kK, OperandB::kMajor});
    const u64 start_b = OperandB::descriptor(b);
#pragma unroll
    for (int step = 0; step < OperandB::kSteps; ++step) {
        ptx::tcgen05_mma<Tcgen05TypeOf<A>::kKind>(
            accumulators.address, a.address + step * kStepWords,
            start_b + OperandB::step_offset(step), kInstruction, accumulate || step > 0
        );
    }
}

// Arrive once on the barrier, in this CTA or another of the cluster, when all tcgen05_mma() of this
// thread have completed.
template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_commit(SharedMemBarrier& barrier) {
    ptx::tcgen05_commit<kCtas>(barrier.address());
}

// The same, with kCtas = 2 on the barriers at this offset in both CTAs of a pair, a cluster of two.
template <int kCtas>
__device__ __forceinline__ void tcgen05_commit_to_pair(SharedMemBarrier& barrier) {
    if constexpr (kCtas == 2) {
        ptx::tcgen05_commit_multicast<2>(barrier.address(), 3);
    } else {
        ptx::tcgen05_commit(barrier.address());
    }
}

// Whether this CTA multiplies: with kCtas = 2 the even CTA of a pair.
template <int kCtas>
__device__ __forceinline__ bool leads_pair() {
    if constexpr (kCtas == 1) return true;
    return block_rank_in_cluster() % 2 == 0;
}

}  // namespace tmaasync
