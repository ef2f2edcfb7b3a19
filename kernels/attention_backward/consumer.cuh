#pragma once

// A consumer warpgroup of the attention backward: dK and dV of its 64 keys, and its share of dQ.
// attention_backward.cu explains the constants.
//
// S and dP are computed transposed, a row for each key (FlashAttention-3's backward), so that P and
// dS stay in registers as operand A of dV += P^T dO and dK += dS^T Q. A column is a query.
#include <tmaasync/attention/softmax.cuh>

#include "pipeline.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention_backward {

using Scores = float[BLOCK_M / 2];
using ScoresOperand = u32[BLOCK_M / 16][4];
using KeyGradients = float[HEAD_DIM / 2];
using QueryGradients = float[kDqAccumulators];

// A thread's values of the columns of its transposed scores.
struct ColumnValues {
    float2 pairs[BLOCK_M / 8];

    __device__ __forceinline__ void load(const RowValues& rows) {
        u32 lane = lane_index();
        wgmma_fence_operands(lane);  // force recomputation: keeping it would spill a register
        if constexpr (RowValues::kInQuads) {
            const auto* quads = reinterpret_cast<const float4*>(rows.values) + lane % 4;
#pragma unroll
            for (int i = 0; i < BLOCK_M / 8; i += 2) {
                const float4 quad = quads[2 * i];
                pairs[i] = {quad.x, quad.y};
                pairs[i + 1] = {quad.z, quad.w};
            }
        } else {
            const auto* own = reinterpret_cast<const float2*>(rows.values) + lane % 4;
#pragma unroll
            for (int i = 0; i < BLOCK_M / 8; ++i) pairs[i] = own[4 * i];
        }
    }

    // The value of the i-th accumulator's column.
    __device__ __forceinline__ float operator[](int i) const {
        const float2& pair = pairs[i / 4];
        return i % 2 == 0 ? pair.x : pair.y;
    }
};

// Set the probabilities of masked keys to zero. The first kPowers of the scores are probabilities,
// and the others exponents.
template <int kPowers>
__device__ __forceinline__ void mask_probabilities(
    Scores& scores, const BackwardProblem& problem, const KeyTile& tile, i32 block, int consumer
) {
    const i32 first_key =
        tile.position + consumer * kConsumerKeys + accumulator_row(thread_in_warpgroup(), 0);
    const i32 first_query = block * BLOCK_M + accumulator_column(thread_in_warpgroup(), 0);
    VisibleColumns visible;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const i32 key = first_key + 8 * half, own = key - tile.shift(problem);
        i32 end = BLOCK_M;
        if constexpr (HAS_LEFT) end = own + problem.left + 1 - first_query;
        visible.end[half] = key < tile.keys.length ? end : 0;
        visible.first[half] = own - problem.right - first_query;
    }
    mask_scores<HAS_RIGHT>(scores, visible, 0, 0, kPowers);
    mask_scores<HAS_RIGHT>(scores, visible, masked_score(), kPowers);
}

struct Consumer {
    SharedMemory& shared;
    const BackwardProblem& problem;
    u32 index;
    RingConsumer<KeysAndValues, Proxy::kGeneric> rows;
    RingConsumer<Queries, Proxy::kGeneric> queries;
    RingConsumer<Queries, Proxy::kGeneric> gradients;
    u32 stage = 0;  // stage of dQ

    __device__ __forceinline__ Consumer(
        SharedMemory& shared, const BackwardProblem& problem, u32 index
    )
        : shared(shared),
          problem(problem),
          index(index),
          rows(shared.rows.consumer()),
          queries(shared.queries.consumer()),
          gradients(shared.gradients.consumer()) {}

    // Compute all tiles that the producer hands over.
    __device__ __forceinline__ void run() {
        const Task& task = shared.rows.side[kKeys];
        if constexpr (kDsStages == 1) ds_is_read(1 - index).arrive();
        for (rows.wait(); !task.is_end; rows.wait()) compute(task.tile);
    }

private:
    __device__ __forceinline__ void compute(const KeyTile& tile) {
        KeyGradients own_dk, own_dv;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; ++i) own_dk[i] = own_dv[i] = 0;
        rows.step();
        rows.wait();
        const i32 heads = problem.heads_per_kv_head, steps = tile.blocks.count() * heads;
        auto visit = Visit::first(tile);
        for (i32 step = 0; step < steps; ++step) {
            compute_block(tile, visit.block, own_dk, own_dv);
            visit.step(tile, heads);
        }
        rows.release(kKeys);
        rows.release(kValues);
        rows.step();
        hand_over_gradients(own_dk, own_dv);
    }

    // --- a block of queries ---

    // With softcap there are no registers for dP next to S, and mma.sync overlaps nothing.
    static constexpr bool kDpIsLate = HAS_SOFTCAP || !kHasWgmma;

    __device__ __forceinline__ void compute_block(
        const KeyTile& tile, i32 block, KeyGradients& own_dk, KeyGradients& own_dv
    ) {
        const KeyRows& values = shared.rows.stages[kValues];
        Scores scores, dp;
        ScoresOperand p, ds;
        ColumnValues lse;
        queries.wait();
        issue_transposed(scores, shared.rows.stages[kKeys], queries.peek());
        // Next to S, if registers suffice: 2 to 4 % faster (docs/decisions/attention.md).
        constexpr bool kEarly = RowValues::kInQuads && !kDpIsLate;
        if constexpr (kEarly) lse.load(queries.peek_side());
        gradients.wait();
        if constexpr (!kDpIsLate) issue_transposed(dp, values, gradients.peek());
        wgmma_wait_group<kDpIsLate ? 0 : 1>();
        wgmma_fence_operands(scores);
        if constexpr (!kEarly) lse.load(queries.peek_side());
        find_probabilities(scores, p, lse, tile, block);
        if constexpr (kDpIsLate) issue_transposed(dp, values, gradients.peek());
        wgmma_wait_group<0>();
        wgmma_fence_operands(dp);
        find_ds(scores, dp, ds);
        if constexpr (kDsStages == 1) ds_is_read(index).sync();
        store_a_transposed<DsOperand>(ds_panels()[index], ds);
        issue_product(own_dv, p, gradients.peek());
        fence_async_view_proxy();
        sync_ds();

        QueryGradients dq;
        issue_dq(dq);
        issue_product(own_dk, ds, queries.peek());
        wgmma_wait_group<2>();
        wgmma_fence_operands(own_dv);
        wgmma_fence_operands(p);
        gradients.release(gradients.index());
        gradients.step();
        wgmma_wait_group<1>();
        wgmma_fence_operands(dq);
        if constexpr (kDsStages == 1) ds_is_read(1 - index).arrive();
        hand_over_dq(dq);
        wgmma_wait_group<0>();
        wgmma_fence_operands(own_dk);
        wgmma_fence_operands(ds);
        queries.release(queries.index());
        queries.step();
    }

    // Compute P from S. The scores become the factors of dS: P, with softcap P times its
    // derivative.
    __device__ __forceinline__ void find_probabilities(
        Scores& scores, ScoresOperand& p, const ColumnValues& lse, const KeyTile& tile, i32 block
    ) const {
        const float scale = problem.scale_log2;
        float factors[HAS_SOFTCAP ? BLOCK_M / 2 : 1];
        if constexpr (HAS_SOFTCAP) {
            cap_scores(scores, problem.scale_in_tanh);
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; ++i) factors[i] = fmaf(-scores[i], scores[i], 1);
        }
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; ++i) scores[i] = fmaf(scores[i], scale, -lse[i]);
        // The assembler moves no exponentials over the branch: half are computed next to dP, and it
        // interleaves the others with dS.
        constexpr int kBefore = HAS_SOFTCAP ? 0 : BLOCK_M / 4;
#pragma unroll
        for (int i = 0; i < kBefore; ++i) scores[i] = ptx::ex2_approx_ftz(scores[i]);
        if (!tile.blocks.is_unmasked(block)) {
            mask_probabilities<kBefore>(scores, problem, tile, block, index);
        }
#pragma unroll
        for (int i = kBefore; i < BLOCK_M / 2; ++i) scores[i] = ptx::ex2_approx_ftz(scores[i]);
        accumulators_to_a<Element>(p, scores);
        if constexpr (HAS_SOFTCAP) {
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; ++i) scores[i] *= factors[i];
        }
    }

    // Compute dS = P * (dP - delta), without the scale of the scores.
    __device__ __forceinline__ void find_ds(
        Scores& scores, const Scores& dp, ScoresOperand& ds
    ) const {
        ColumnValues delta;
        delta.load(gradients.peek_side());
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; ++i) scores[i] *= dp[i] - delta[i];
        accumulators_to_a<Element>(ds, scores);
    }

    // --- MMAs, one wgmma group each ---

    // Issue S = K Q^T, or dP = V dO^T.
    __device__ __forceinline__ void issue_transposed(
        Scores& scores, const KeyRows& keys, const typename QTile::Shared& block
    ) const {
        using A = KeysOperand<Major::kK>;
        using B = QueriesOperand<Major::kK>;
        wgmma_fence_operands(scores);
        wgmma_fence();
        wgmma_tile<A, B>(
            scores, A::descriptor(keys.consumers[index], 0), B::descriptor(block, 0), false
        );
        wgmma_commit_group();
    }

    // Issue dV += P^T dO, or dK += dS^T Q.
    __device__ __forceinline__ void issue_product(
        KeyGradients& gradient, ScoresOperand& a, const typename QTile::Shared& block
    ) const {
        using B = QueriesOperand<Major::kMN>;
        wgmma_fence_operands(gradient);
        wgmma_fence_operands(a);
        wgmma_fence();
        wgmma_tile_rs<B>(gradient, a, B::descriptor(block, 0), true);
        wgmma_commit_group();
    }

    // Issue the consumer's share of dQ = dS K, or of dQ^T = K^T dS^T.
    __device__ __forceinline__ void issue_dq(QueryGradients& dq) const {
        using Depth = KeysOperand<Major::kMN>;
        const KeyRows& keys = shared.rows.stages[kKeys];
        wgmma_fence_operands(dq);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kConsumers; ++part) {
            const u32 row = kDqShare == DqShare::kRows ? index * 64 : 0;
            const u32 column = kDqShare == DqShare::kRows ? 0 : index * kDqColumns;
            const u64 ds = DsOperand::descriptor(ds_panels()[part], row);
            const u64 k = Depth::descriptor(keys.consumers[part], column);
            if constexpr (kDqShare == DqShare::kTransposedColumns) {
                wgmma_tile<Depth, DsOperand>(dq, k, ds, part > 0);
            } else {
                wgmma_tile<DsOperand, Depth>(dq, ds, k, part > 0);
            }
        }
        wgmma_commit_group();
    }

    // --- results ---

    // Hand the consumer's share of dQ to the warp that adds it to memory.
    __device__ __forceinline__ void hand_over_dq(const QueryGradients& dq) {
        auto& quads = taken_part().quads;
#pragma unroll
        for (int i = 0; i < kDqQuads; ++i) {
            quads[i][thread_in_warpgroup()] = {
                {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]}
            };
        }
        hand_over_part();
    }

    // Hand dV and dK to the same warp, which stores them.
    __device__ __forceinline__ void hand_over_gradients(
        KeyGradients& own_dk, const KeyGradients& own_dv
    ) {
        using Staged = KeysOperand<Major::kK>;
        store_accumulators<Staged, HEAD_DIM>(staged(taken_part()), own_dv);
#pragma unroll
        for (float& value : own_dk) value *= problem.scale;
        hand_over_part();
        store_accumulators<Staged, HEAD_DIM>(staged(taken_part()), own_dk);
        hand_over_part();
    }

    // --- memory of this block ---

    __device__ __forceinline__ DsPanel (&ds_panels() const)[kConsumers] {
        return shared.ds[kDsStages == 1 ? 0 : queries.index()];
    }

    __device__ __forceinline__ HandOver hand_over() const { return {index, stage}; }

    // Wait until the memory of dQ is handed back, and return it.
    __device__ __forceinline__ DqPart& taken_part() const {
        hand_over().empty().sync();
        return shared.dq[stage][index];
    }

    __device__ __forceinline__ void hand_over_part() {
        hand_over().full().arrive();
        stage = (stage + 1) % kDqStages;
    }
};

}  // namespace tmaasync::kernels::attention_backward
