#pragma once

#include <tmaasync/structured/mma_order.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/wgmma.cuh>

// Main loops of a GEMM over the stages of a ring (CUTLASS's collective main loops): a consumer
// warpgroup multiplies the tiles of every stage, and accumulates in registers.
namespace tmaasync {

// --- any MMAs ------------------------------------------------------------------------------------

// Issue the MMAs of the next k_blocks (at least one) stages, one wgmma group per stage.
// prepare(stage) is called before the tiles of a stage have landed, and returns the argument of
// issue(prepared, accumulate), for example descriptors. issue() issues the instructions, but
// neither fences nor commits; `accumulate` is false for the first stage. One group stays in flight,
// so that the tensor cores never drain; the stage before it is released. Return the index of the
// last stage, which finish_stages() releases.
template <typename Consumer, typename Prepare, typename Issue, typename... Accumulators>
[[nodiscard]] __device__ __forceinline__ u32 issue_stages(
    Consumer& consumer,
    int k_blocks,
    const Prepare& prepare,
    const Issue& issue,
    Accumulators&... accumulators
) {
    u32 previous = 0;
    for (int block = 0; block < k_blocks; ++block, consumer.step()) {
        const auto prepared = prepare(consumer.peek());
        consumer.wait();
        (wgmma_fence_operands(accumulators), ...);
        wgmma_fence();
        issue(prepared, block > 0);
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

// Call issue_stages() and finish_stages(): the accumulators are complete on return. issue(stage,
// accumulate) issues the MMAs of a stage. Use it for several B operands, or for A in registers
// (wgmma_tile_rs); then issue() must call wgmma_wait_group<0>() before it overwrites the registers
// of A, which the group in flight reads.
template <typename Consumer, typename Issue, typename... Accumulators>
__device__ __forceinline__ void multiply_stages(
    Consumer& consumer, int k_blocks, const Issue& issue, Accumulators&... accumulators
) {
    const u32 last = issue_stages(
        consumer, k_blocks, [](auto& stage) { return &stage; },
        [&](const auto* stage, bool accumulate) { issue(*stage, accumulate); }, accumulators...
    );
    finish_stages(consumer, last, accumulators...);
}

// --- one operand A and one operand B -------------------------------------------------------------

// The default on_issued(), which does nothing.
struct NothingOnIssued {
    __device__ __forceinline__ void operator()() const {}
};

// The main loop of a warpgroup that multiplies kRows rows of A by kColumns columns of B: the tiles
// `a` and `b` of every stage. OperandA and OperandB are WgmmaOperands.
template <typename OperandA, typename OperandB, int kRows, int kColumns>
struct MainLoop {
    static_assert(
        kRows % 64 == 0 && kRows > 0, "an instruction has 64 rows: a warpgroup has 64 or 128"
    );
    static_assert(OperandA::kDepth == OperandB::kDepth, "a stage of A is as deep as one of B");
    static_assert(kRows <= OperandA::kExtent, "operand A has fewer rows than the accumulators");
    static_assert(kColumns <= OperandB::kExtent, "operand B has fewer columns than they have");
    static constexpr int kRowBlocks = kRows / 64;
    static constexpr int kDepth = OperandA::kDepth;

    // A thread has, per row block, two adjacent columns of every eight, in rows lane / 4 and
    // lane / 4 + 8 of the warp's 16: see accumulator_row and accumulator_column.
    using Register = typename AccumulatorOf<typename OperandA::Element>::Type;
    using Accumulators = Register[kRowBlocks][kColumns / 2];

    // Multiply the next k_blocks (at least one) stages, with A from `row` on. on_issued() is called
    // after all MMAs are issued: ping-pong consumers let the next one begin.
    template <typename Consumer, typename OnIssued = NothingOnIssued>
    __device__ __forceinline__ static void multiply(
        Consumer& consumer,
        Accumulators& accumulators,
        int k_blocks,
        int row = 0,
        const OnIssued& on_issued = {}
    ) {
        check_range("row", row, 0, OperandA::kExtent - kRows);
        const auto issue = [&](const Descriptors& descriptors, bool accumulate) {
#pragma unroll
            for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
                wgmma_tile<OperandA, OperandB>(
                    accumulators[row_block], descriptors.a[row_block], descriptors.b, accumulate
                );
            }
        };
        const auto describe = [&](const auto& stage) { return Descriptors(stage, row); };
        const u32 last = issue_stages(consumer, k_blocks, describe, issue, accumulators);
        on_issued();
        finish_stages(consumer, last, accumulators);
    }

private:
    struct Descriptors {
        u64 a[kRowBlocks];
        u64 b;

        template <typename Stage>
        __device__ __forceinline__ Descriptors(const Stage& stage, int row) {
#pragma unroll
            for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
                a[row_block] = OperandA::descriptor(stage.a, row + row_block * 64);
            }
            b = OperandB::descriptor(stage.b, 0);
        }
    };
};

// --- block-scaled operands -----------------------------------------------------------------------

// The scales of the two rows of A for which a thread has accumulators: accumulator_row(thread, 0),
// and eight rows below.
struct RowScales {
    float upper;
    float lower;
};

// The main loop of 64 rows with block-scaled operands: one scale per stage of K, 128 elements of
// FP8. The tensor cores accumulate a stage; CUDA cores scale these partial sums and promote them
// into fp32 accumulators (DeepSeek-V3's fine-grained FP8, DeepGEMM). The scales are side data of
// the ring, so the consumer has Proxy::kMixed or kGeneric. The ring has at least two stages.
// `scales` has two functions, called when the stage has landed, before its MMAs are issued:
//
//   RowScales rows(side)                     for the rows of this warpgroup
//   float columns(side, column, block)       one scale for kMmaColumns columns from `column` on, or
//   const float* columns(side, column, block)    the scales of these columns, in shared memory
template <typename OperandA, typename OperandB, int kColumns>
struct ScaledMainLoop {
    // Columns of one MMA: partial sums for all columns of the widest CTA tile would not fit in the
    // registers next to the accumulators.
    static constexpr int kMmaColumns = kColumns < 128 ? kColumns : 128;
    static_assert(kColumns % kMmaColumns == 0, "a tile has at most 128 columns, or a multiple");
    static constexpr int kMmas = kColumns / kMmaColumns;

    // A wide tile waits for the next stage while the last MMA of a stage runs, so that the next MMA
    // is issued right after the promotion. A narrow tile is bound by memory, so it releases first.
    static constexpr bool kWaitsEarly = kColumns > kMmaColumns;

    using Accumulators = float[1][kColumns / 2];

    // Multiply the next k_blocks (at least one) stages, with A from `row` on.
    template <typename Consumer, typename Scales>
    __device__ __forceinline__ static void multiply(
        Consumer& consumer, Accumulators& accumulators, int k_blocks, int row, const Scales& scales
    ) {
        check_range("row", row, 0, OperandA::kExtent - 64);
        for (float& accumulator : accumulators[0]) accumulator = 0;
        constexpr int kStageBytes = sizeof(consumer.peek());
        const auto read_scales = [&](int block) {
            StageScales<decltype(scales.columns(consumer.peek_side(), 0, 0))> read;
            const auto& side = consumer.peek_side();
            read.rows = scales.rows(side);
#pragma unroll
            for (int mma = 0; mma < kMmas; ++mma) {
                read.columns[mma] = scales.columns(side, mma * kMmaColumns, block);
            }
            return read;
        };
        Descriptors next{
            OperandA::descriptor(consumer.peek().a, row), OperandB::descriptor(consumer.peek().b, 0)
        };
        // The ring's first stage. Derived from the ring's address, it would be computed in every
        // iteration.
        const Descriptors first = next.moved(-static_cast<int>(consumer.index()) * kStageBytes);
        consumer.wait();
        auto next_scales = read_scales(0);
        for (int block = 0; block < k_blocks; ++block) {
            const Descriptors stage = next;
            const auto current = next_scales;
            const u32 index = consumer.index();
            const auto wait_for_next = [&] {
                consumer.step();
                next = consumer.index() == 0 ? first : next.moved(kStageBytes);
                if (block + 1 == k_blocks) return;
                consumer.wait();
                next_scales = read_scales(block + 1);
            };
#pragma unroll
            for (int mma = 0; mma < kMmas; ++mma) {
                const bool is_last = mma + 1 == kMmas;
                const auto release = [&] {
                    if (is_last) consumer.release(index);
                };
                Partial partial;
                const int column = mma * kMmaColumns;
                const u64 b = increase_descriptor_offset(stage.b, column * OperandB::kSpan);
                issue(partial, stage.a, b);
                if (kWaitsEarly && is_last) wait_for_next();
                wgmma_wait_group<0>();
                wgmma_fence_operands(partial);
                // Release the stage early, so that it is reloaded during the promotion.
                constexpr bool kIsInRegisters = decltype(next_scales)::kIsInRegisters;
                if constexpr (kIsInRegisters) release();
                promote(accumulators[0] + column / 2, partial, current.rows, current.columns[mma]);
                if constexpr (!kIsInRegisters) release();
            }
            if (!kWaitsEarly) wait_for_next();
        }
    }

private:
    using Partial = float[kMmaColumns / 2];

    // The scales of a stage; where B has one for every column, their addresses in shared memory.
    // They are read before the MMAs are issued: a read between MMAs delays those after it.
    template <typename Columns>
    struct StageScales {
        static constexpr bool kIsInRegisters = kSameType<Columns, float>;

        RowScales rows;
        Columns columns[kMmas];
    };

    // The descriptors of a stage. The next stage's descriptors are derived by addition while MMAs
    // run; computing them from scratch would delay the next MMAs.
    struct Descriptors {
        u64 a;
        u64 b;

        __device__ __forceinline__ Descriptors moved(int bytes) const {
            const long long units = bytes / 16;
            return {a + units, b + units};
        }
    };

    __device__ __forceinline__ static void issue(Partial& partial, u64 a, u64 b) {
        wgmma_fence_operands(partial);
        wgmma_fence();
        wgmma_tile<OperandA, OperandB>(partial, a, b, false);
        wgmma_commit_group();
    }

    // accumulators += rows * column * partial sums
    __device__ __forceinline__ static void promote(
        float* accumulators, const Partial& partial, RowScales rows, float column
    ) {
        const float upper = rows.upper * column, lower = rows.lower * column;
#pragma unroll
        for (int i = 0; i < kMmaColumns / 2; i += 4) {
            accumulators[i] = fmaf(upper, partial[i], accumulators[i]);
            accumulators[i + 1] = fmaf(upper, partial[i + 1], accumulators[i + 1]);
            accumulators[i + 2] = fmaf(lower, partial[i + 2], accumulators[i + 2]);
            accumulators[i + 3] = fmaf(lower, partial[i + 3], accumulators[i + 3]);
        }
    }

    // The same, with one scale per column.
    __device__ __forceinline__ static void promote(
        float* accumulators, const Partial& partial, RowScales rows, const float* columns
    ) {
#pragma unroll
        for (int i = 0; i < kMmaColumns / 2; i += 4) {
            const int column = accumulator_column(thread_in_warpgroup(), i);
            const float2 scale = *reinterpret_cast<const float2*>(columns + column);
            accumulators[i] = fmaf(rows.upper * scale.x, partial[i], accumulators[i]);
            accumulators[i + 1] = fmaf(rows.upper * scale.y, partial[i + 1], accumulators[i + 1]);
            accumulators[i + 2] = fmaf(rows.lower * scale.x, partial[i + 2], accumulators[i + 2]);
            accumulators[i + 3] = fmaf(rows.lower * scale.y, partial[i + 3], accumulators[i + 3]);
        }
    }
};

// --- tiles of a schedule -------------------------------------------------------------------------

// Cooperative consumers (CUTLASS's KernelTmaWarpSpecializedCooperative): all consumers share every
// tile, and each multiplies its own rows, from `row` on. store(accumulators, tile) is the epilogue.
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

// Ping-pong consumers (CUTLASS's KernelTmaWarpSpecializedPingpong): each of two consumers has every
// second tile, and its epilogue overlaps the other's main loop. A consumer accesses the ring only
// in its turn: by then the other has waited for all of its stages, so no barrier can complete two
// phases unseen, which their parity would hide. The ring counts the warps of one consumer, because
// each stage has one reader.
template <typename Loop, typename Consumer, typename Schedule, typename Store>
__device__ __forceinline__ void multiply_tiles_pingpong(
    Consumer& consumer, Schedule schedule, int k_blocks, int number, const Store& store
) {
    using Order = MmaOrder<2>;
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
