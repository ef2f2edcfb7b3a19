#pragma once

#include <tmaasync/fragment.cuh>
#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/operands/target.cuh>
#include <tmaasync/operands/wgmma_forms.cuh>
#include <tmaasync/ptx/wgmma.cuh>
#include <tmaasync/ptx/wgmma_mma.cuh>
#include <tmaasync/types.cuh>
#include <tmaasync/wgmma_operand.cuh>

#if !TMAASYNC_HAS_WGMMA
#include <tmaasync/warp_mma.cuh>
#endif

// Matrix multiply-accumulate by a warpgroup (wgmma); all four warps call these functions together.
// The accumulators of 64 rows and N columns are an array in each thread, whose length determines N:
// float or int [N / 2], or u32 [N / 4] for pairs of fp16 accumulators.
//
// Blackwell has no wgmma: there the functions for tiles multiply with mma.sync, each warp its 16
// rows (warp_mma.cuh), and are complete on return. One instruction (wgmma_ss_atom, wgmma_rs_atom)
// needs Hopper.
namespace tmaasync {

// --- groups of instructions ----------------------------------------------------------------------

// Order earlier accesses to registers and shared memory before later wgmma instructions.
__device__ __forceinline__ void wgmma_fence() {
    if constexpr (kHasWgmma) ptx::wgmma_fence();
}

// Commit the wgmma instructions issued since the last commit as one group.
__device__ __forceinline__ void wgmma_commit_group() {
    if constexpr (kHasWgmma) ptx::wgmma_commit_group();
    instrument::trace_warp(instrument::TraceKind::kMmaCommit);
}

// Wait until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
    const instrument::TracedWait traced(instrument::TraceKind::kMmaWait, 0, kPending);
    if constexpr (kHasWgmma) {
        ptx::wgmma_wait_group<kPending>();
    } else {
        __syncwarp();  // all lanes have read their operands
    }
}

// --- one instruction -----------------------------------------------------------------------------

// Both operands are in shared memory. A and B are the element types; a scale of -1 negates.
template <
    typename A,
    typename B = A,
    Major kMajorA = Major::kK,
    Major kMajorB = Major::kK,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kRegisters>
__device__ __forceinline__ void wgmma_ss_atom(
    Register (&accumulators)[kRegisters], u64 a, u64 b, bool accumulate
) {
    static_assert(
        ptx::MmaAccumulators<Register>::has_columns(ptx::mma_columns<Register>(kRegisters)),
        "N is 8, 16, ... 256; for integers 8, 16, 24, 32, 48, ... 256"
    );
    ptx::wgmma_mma_async_ss<
        MmaTypeOf<A>::kType, MmaTypeOf<B>::kType, kMajorA == Major::kMN, kMajorB == Major::kMN,
        kScaleA, kScaleB>(accumulators, a, b, accumulate);
}

// A is in registers; a_fragment_row and a_fragment_byte return the positions of its elements.
template <
    typename A,
    typename B = A,
    Major kMajorB = Major::kK,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kRegisters>
__device__ __forceinline__ void wgmma_rs_atom(
    Register (&accumulators)[kRegisters], const u32 (&a)[4], u64 b, bool accumulate
) {
    static_assert(
        ptx::MmaAccumulators<Register>::has_columns(ptx::mma_columns<Register>(kRegisters)),
        "N is 8, 16, ... 256; for integers 8, 16, 24, 32, 48, ... 256"
    );
    ptx::wgmma_mma_async_rs<
        MmaTypeOf<A>::kType, MmaTypeOf<B>::kType, kMajorB == Major::kMN, kScaleA, kScaleB>(
        accumulators, a, b, accumulate
    );
}

// --- along K -------------------------------------------------------------------------------------

// Multiply 64 rows of A by N columns of B, one instruction per step along K, without fences or
// commits.
template <
    typename OperandA,
    typename OperandB,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kRegisters>
__device__ __forceinline__ void wgmma_tile(
    Register (&accumulators)[kRegisters], u64 a, u64 b, bool accumulate
) {
    static_assert(OperandA::kDepth == OperandB::kDepth, "A and B are equally deep");
#if !TMAASYNC_HAS_WGMMA
    static_assert(kScaleA == 1 && kScaleB == 1, "mma.sync has no scale: negate the operand");
    warp_mma_tile<OperandA, OperandB>(
        accumulators, descriptor_address(a), descriptor_address(b), accumulate
    );
#else
#pragma unroll
    for (int step = 0; step < OperandA::kSteps; ++step) {
        wgmma_ss_atom<
            typename OperandA::Element, typename OperandB::Element, OperandA::kMajor,
            OperandB::kMajor, kScaleA, kScaleB>(
            accumulators, a + OperandA::step_offset(step), b + OperandB::step_offset(step),
            accumulate || step > 0
        );
    }
#endif
}

// Multiply with A in registers, four registers per step.
template <
    typename OperandB,
    typename A = typename OperandB::Element,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kRegisters,
    int kSteps>
__device__ __forceinline__ void wgmma_tile_rs(
    Register (&accumulators)[kRegisters], const u32 (&a)[kSteps][4], u64 b, bool accumulate
) {
    static_assert(kSteps == OperandB::kSteps, "A and B are equally deep");
#if !TMAASYNC_HAS_WGMMA
    static_assert(kScaleA == 1 && kScaleB == 1, "mma.sync has no scale: negate the operand");
    warp_mma_tile_rs<A, OperandB>(accumulators, a, descriptor_address(b), accumulate);
#else
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        wgmma_rs_atom<A, typename OperandB::Element, OperandB::kMajor, kScaleA, kScaleB>(
            accumulators, a[step], b + OperandB::step_offset(step), accumulate || step > 0
        );
    }
#endif
}

// --- whole tiles ---------------------------------------------------------------------------------

// Keep the compiler from moving these registers (accumulators or A) across this point.
__device__ __forceinline__ void wgmma_fence_operands(float& held) {
    ptx::wgmma_fence_operand(held);
}
__device__ __forceinline__ void wgmma_fence_operands(u32& held) {
    ptx::wgmma_fence_operand(held);
}
__device__ __forceinline__ void wgmma_fence_operands(int& held) {
    ptx::wgmma_fence_operand(held);
}
template <typename Held, int kCount>
__device__ __forceinline__ void wgmma_fence_operands(Held (&held)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        wgmma_fence_operands(held[i]);
    }
}

// Commit the group, and wait until at most kPending groups are in flight; -1: do not wait.
template <int kPending, typename Accumulators>
__device__ __forceinline__ void finish_wgmma(Accumulators& accumulators) {
    wgmma_commit_group();
    if constexpr (kPending >= 0) wgmma_wait_group<kPending>();
    wgmma_fence_operands(accumulators);
}

// Check that an operand has kAtoms * kCount rows of M or N from `first` on, and that instructions
// of kCount rows can read them.
template <typename Operand, int kAtoms, int kCount>
__device__ __forceinline__ void check_atoms(const char* argument, u32 first) {
    static_assert(kAtoms * kCount <= Operand::kExtent, "the operand has fewer rows than the atoms");
    static_assert(
        kAtoms == 1 || Operand::is_readable(kCount, kCount),
        "with M or N contiguous, each instruction starts with a panel, or lies inside one: choose "
        "N "
        "as wgmma.instruction_n(columns, panel) does"
    );
    check_range(argument, first, 0, Operand::kExtent - kAtoms * kCount);
    if constexpr (kIsDebug) {
        for (int atom = 0; atom < kAtoms; ++atom) {
            const u32 start = first + atom * kCount;
            const char* const rule = "it must start a panel, or lie with all columns in a panel of";
            check(
                Operand::is_readable(start, kCount), argument, start, rule, Operand::kSpanElements
            );
        }
    }
}

// Multiply a warpgroup's tile: 64 * kAtomsM rows of A from `first_a` on by kAtomsN * N columns of B
// from `first_b` on, over the whole depth of the operands. `accumulate` adds to the accumulators.
// All instructions form one group, with atoms along N outermost and K innermost. Return once at
// most kPending groups are in flight; with -1 at once. Do not read the accumulators before the
// group has finished. Operands written with ordinary stores need fence_async_view_proxy() first.
template <
    typename OperandA,
    typename OperandB,
    int kPending = 0,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kAtomsM,
    int kAtomsN,
    int kRegisters,
    typename SharedA,
    typename SharedB>
__device__ __forceinline__ void wgmma(
    Register (&accumulators)[kAtomsM][kAtomsN][kRegisters],
    const SharedA& a,
    const SharedB& b,
    bool accumulate,
    u32 first_a = 0,
    u32 first_b = 0
) {
    constexpr int kColumns = ptx::mma_columns<Register>(kRegisters);
    check_atoms<OperandA, kAtomsM, 64>("first_a", first_a);
    check_atoms<OperandB, kAtomsN, kColumns>("first_b", first_b);
    wgmma_fence_operands(accumulators);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
        for (int m = 0; m < kAtomsM; ++m) {
            wgmma_tile<OperandA, OperandB, kScaleA, kScaleB>(
                accumulators[m][n], OperandA::descriptor(a, first_a + m * 64),
                OperandB::descriptor(b, first_b + n * kColumns), accumulate
            );
        }
    }
    finish_wgmma<kPending>(accumulators);
}

// Multiply with A in registers, in the layout of load_a_fragments. Do not write the registers while
// the group is in flight.
template <
    typename OperandB,
    typename A = typename OperandB::Element,
    int kPending = 0,
    int kScaleA = 1,
    int kScaleB = 1,
    typename Register,
    int kAtomsM,
    int kAtomsN,
    int kRegisters,
    int kSteps,
    typename SharedB>
__device__ __forceinline__ void wgmma_rs(
    Register (&accumulators)[kAtomsM][kAtomsN][kRegisters],
    u32 (&a)[kAtomsM][kSteps][4],
    const SharedB& b,
    bool accumulate,
    u32 first_b = 0
) {
    constexpr int kColumns = ptx::mma_columns<Register>(kRegisters);
    check_atoms<OperandB, kAtomsN, kColumns>("first_b", first_b);
    wgmma_fence_operands(accumulators);
    wgmma_fence_operands(a);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
        for (int m = 0; m < kAtomsM; ++m) {
            wgmma_tile_rs<OperandB, A, kScaleA, kScaleB>(
                accumulators[m][n], a[m], OperandB::descriptor(b, first_b + n * kColumns),
                accumulate
            );
        }
    }
    finish_wgmma<kPending>(accumulators);
    wgmma_fence_operands(a);
}

}  // namespace tmaasync
