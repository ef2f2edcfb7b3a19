#pragma once

#include <tmaasync/ring.cuh>
#include <tmaasync/wgmma.cuh>

// Main loops of a GEMM over the stages of a ring (CUTLASS's collective main loops): a consumer
// warpgroup multiplies the tiles of every stage into accumulators in registers.
namespace tmaasync {

// --- any MMAs ------------------------------------------------------------------------------------

// Issue the MMAs of the next k_blocks stages, one group of wgmma for each: issue(stage, accumulate)
// issues the instructions of a stage and neither fences nor commits. `accumulate` is false for the
// first. One group stays in flight, so that the tensor cores never drain; the stage before it is
// released. Return the index of the last stage, which finish_stages() releases. At least one stage.
template <typename Consumer, typename Issue, typename... Accumulators>
[[nodiscard]] __device__ __forceinline__ u32 issue_stages(
    Consumer& consumer, int k_blocks, const Issue& issue, Accumulators&... accumulators
) {
    u32 previous = 0;
    for (int block = 0; block < k_blocks; ++block, consumer.step()) {
        auto& stage = consumer.peek();
        consumer.wait();
        (wgmma_fence_operands(accumulators), ...);
        wgmma_fence();
        issue(stage, block > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        (wgmma_fence_operands(accumulators), ...);
        if (block > 0) consumer.release(previous);
        previous = consumer.index();
    }
    return previous;
}

// Wait for the MMAs of issue_stages(), and release its last stage.
template <typename Consumer, typename... Accumulators>
__device__ __forceinline__ void finish_stages(
    Consumer& consumer, u32 last, Accumulators&... accumulators
) {
    wgmma_wait_group<0>();
    (wgmma_fence_operands(accumulators), ...);
    consumer.release(last);
}

// Both together: the accumulators are complete on return. For several B operands, and for A in
// registers (wgmma_tile_rs): there issue() waits with wgmma_wait_group<0>() before it overwrites
// the registers of A, which the group in flight reads.
template <typename Consumer, typename Issue, typename... Accumulators>
__device__ __forceinline__ void multiply_stages(
    Consumer& consumer, int k_blocks, const Issue& issue, Accumulators&... accumulators
) {
    const u32 last = issue_stages(consumer, k_blocks, issue, accumulators...);
    finish_stages(consumer, last, accumulators...);
}

// --- one operand A and one operand B -------------------------------------------------------------

// Does nothing when all MMAs of a tile are issued.
struct NothingOnIssued {
    __device__ __forceinline__ void operator()() const {}
};

// The main loop of a warpgroup that multiplies kRows rows of A and kColumns columns of B: the tiles
// `a` and `b` of every stage. OperandA and OperandB are WgmmaOperands.
template <typename OperandA, typename OperandB, int kRows, int kColumns>
struct MainLoop {
    static_assert(
        kRows % 64 == 0 && kRows > 0, "an instruction has 64 rows: a warpgroup has 64 or 128"
    );
    static_assert(OperandA::kDepth == OperandB::kDepth, "a stage of A is as deep as one of B");
    static constexpr int kRowBlocks = kRows / 64;
    static constexpr int kDepth = OperandA::kDepth;

    // Of each row block two neighbouring columns of every eight, in rows lane / 4 and lane / 4 + 8
    // of the warp's 16: see accumulator_row and accumulator_column.
    using Register = typename AccumulatorOf<typename OperandA::Element>::Type;
    using Accumulators = Register[kRowBlocks][kColumns / 2];

    // Multiply the next k_blocks stages, at least one, A's from this row on. on_issued() is called
    // when all MMAs are issued: ping-pong consumers let the next one begin.
    template <typename Consumer, typename OnIssued = NothingOnIssued>
    __device__ __forceinline__ static void multiply(
        Consumer& consumer,
        Accumulators& accumulators,
        int k_blocks,
        int row = 0,
        const OnIssued& on_issued = {}
    ) {
        const auto issue = [&](const auto& stage, bool accumulate) {
            const u64 b = OperandB::descriptor(stage.b, 0);
#pragma unroll
            for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
                wgmma_tile<OperandA, OperandB>(
                    accumulators[row_block], OperandA::descriptor(stage.a, row + row_block * 64), b,
                    accumulate
                );
            }
        };
        const u32 last = issue_stages(consumer, k_blocks, issue, accumulators);
        on_issued();
        finish_stages(consumer, last, accumulators);
    }
};

// --- tiles of a schedule -------------------------------------------------------------------------

// Cooperative consumers (CUTLASS's KernelTmaWarpSpecializedCooperative): all share every tile, and
// each multiplies its own rows, from `row` on. store(accumulators, tile) is the epilogue.
template <typename Loop, typename Consumer, typename Schedule, typename Store>
__device__ __forceinline__ void multiply_tiles_cooperative(
    Consumer& consumer, Schedule schedule, int k_blocks, int row, const Store& store
) {
    for (; !schedule.done(); schedule.step()) {
        const auto tile = schedule.tile();
        typename Loop::Accumulators accumulators;
        Loop::multiply(consumer, accumulators, k_blocks, row);
        store(accumulators, tile);
    }
}

// Ping-pong consumers (CUTLASS's KernelTmaWarpSpecializedPingpong): each of two has every second
// tile, and its epilogue overlaps the other's main loop. A consumer first looks at the ring when
// its turn comes: by then the other has waited for all of its stages, so that no barrier can
// complete two phases unseen, which their parity would hide. Order is MmaOrder<2>; the ring has
// the warps of one consumer, since each stage has one reader.
template <typename Loop, typename Order, typename Consumer, typename Schedule, typename Store>
__device__ __forceinline__ void multiply_tiles_pingpong(
    Consumer& consumer, Schedule schedule, int k_blocks, int number, const Store& store
) {
    bool has_turn = number == 0;
    if (!has_turn && !schedule.done()) {
        schedule.step();
        consumer.skip(k_blocks);
    }
    while (!schedule.done()) {
        const auto tile = schedule.tile();
        schedule.step();
        const bool is_last = schedule.done();
        if (!has_turn) Order::wait(number);
        has_turn = false;
        typename Loop::Accumulators accumulators;
        Loop::multiply(consumer, accumulators, k_blocks, 0, [&] {
            if (!is_last) Order::release(1 - number);
        });
        store(accumulators, tile);
        if (is_last) break;
        schedule.step();
        consumer.skip(k_blocks);
    }
}

}  // namespace tmaasync
