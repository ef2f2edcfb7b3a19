#pragma once

#include <tmaasync/attention/pipelines.cuh>
#include <tmaasync/operands/target.cuh>
#include <tmaasync/structured/ring_consumer.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync {

// The MMAs of a consumer warpgroup of attention, on the blocks of keys and values in its pipelines.
template <typename Pipelines>
class AttentionMmas {
public:
    using Operands = typename Pipelines::Operands;
    using Scores = typename Operands::Scores;
    using Probabilities = typename Operands::Probabilities;
    using Accumulators = typename Operands::Accumulators;

    // Two-level accumulation for FP8 (as in DeepSeek-V3 and SageAttention2). The tensor cores' FP8
    // accumulators keep only about 14 bits and truncate towards zero: 16384 equal probabilities
    // would add up to three quarters of their sum (measured on an H200). So the tensor cores
    // accumulate only one block, and blocks are added in fp32. Registers for both are free only
    // while no scores are live, and only for some columns at once: so a consumer's MMAs run one
    // after the other. mma.sync that multiplies FP8 as fp16 accumulates in fp32: it adds P V to the
    // accumulators, in the same order.
    static constexpr bool kAccumulatesInTwoLevels = Operands::kIsFp8;

    __device__ __forceinline__ explicit AttentionMmas(Pipelines& pipelines)
        : ones_(pipelines.keys.side),
          keys_(pipelines.keys.template consumer<Proxy::kAsync>()),
          values_(pipelines.values.read().template consumer<Proxy::kAsync>()) {}

    // Issue S = Q K^T as one wgmma group.
    template <typename Queries>
    __device__ __forceinline__ void issue_qk(Scores& scores, const Queries& queries) {
        const u64 q = Operands::Q::descriptor(queries, 0);
        const u64 k = Operands::K::descriptor(keys_.peek(), 0);
        keys_.wait();
        wgmma_fence_operands(scores);
        wgmma_fence();
        wgmma_tile<typename Operands::Q, typename Operands::K>(scores, q, k, false);
        wgmma_commit_group();
    }

    // Issue O += P V as one wgmma group.
    __device__ __forceinline__ void issue_pv(
        Accumulators& accumulators, Probabilities& probabilities
    ) {
        const u64 v = Operands::V::descriptor(values_.peek(), 0);
        values_.wait();
        wgmma_fence_operands(accumulators);
        wgmma_fence_operands(probabilities);
        wgmma_fence();
        wgmma_tile_rs<typename Operands::V>(accumulators, probabilities, v, true);
        wgmma_commit_group();
    }

    // Wait for S, with at most kPending later groups in flight, and release the keys.
    template <int kPending>
    __device__ __forceinline__ void wait_for_qk(Scores& scores) {
        wgmma_wait_group<kPending>();
        wgmma_fence_operands(scores);
        release_stage(keys_);
    }

    // Wait for O, and release the values.
    __device__ __forceinline__ void wait_for_pv(
        Accumulators& accumulators, Probabilities& probabilities
    ) {
        wgmma_wait_group<0>();
        wgmma_fence_operands(accumulators);
        wgmma_fence_operands(probabilities);
        release_stage(values_);
    }

    // Compute O += P V in two levels, and row_sum of the rounded P; wait for their end.
    template <typename Softmax>
    __device__ __forceinline__ void accumulate_pv(
        Accumulators& accumulators, Probabilities& probabilities, Softmax& softmax
    ) {
        float row_sum[4];
        Operands::HalfOfOnes::issue_row_sum(ones_, row_sum, probabilities);
        if constexpr (kConvertsFp8) {
            issue_pv(accumulators, probabilities);
        } else {
            values_.wait();
#pragma unroll
            for (int first = 0; first < kHeadDim; first += kColumnsAtOnce) {
                accumulate_columns(accumulators, probabilities, first);
            }
        }
        wgmma_fence_operands(row_sum);
        softmax.add_rounded(row_sum[0], row_sum[2]);
        release_stage(values_);
    }

    // Release blocks that only the peer CTA needs.
    __device__ __forceinline__ void discard_blocks(i32 count) {
        for (i32 i = 0; i < count; ++i) {
            discard_stage(keys_);
            discard_stage(values_);
        }
    }

private:
    static constexpr int kHeadDim = Operands::kHeadDim;
    static constexpr int kColumnsAtOnce = kHeadDim == 192 ? 96 : 64;

    // Add kColumnsAtOnce columns of P V from `first` on.
    __device__ __forceinline__ void accumulate_columns(
        Accumulators& accumulators, Probabilities& probabilities, int first
    ) {
        float block[kColumnsAtOnce / 2];
        wgmma_fence_operands(block);
        wgmma_fence_operands(probabilities);
        wgmma_fence();
        const u64 v = Operands::V::descriptor(values_.peek(), first);
        wgmma_tile_rs<typename Operands::V>(block, probabilities, v, false);
        finish_wgmma<0>(block);
        wgmma_fence_operands(probabilities);
#pragma unroll
        for (int i = 0; i < kColumnsAtOnce / 2; ++i) {
            if (i / 2 % 2 < Operands::kRowsOfThread) accumulators[first / 2 + i] += block[i];
        }
    }

    // Release the current stage of a ring's consumer.
    template <typename Stages>
    __device__ __forceinline__ static void release_stage(Stages& stages) {
        stages.release(stages.index());
        stages.step();
    }

    template <typename Stages>
    __device__ __forceinline__ static void discard_stage(Stages& stages) {
        stages.wait();
        // No other lane of the warp may still wait for the stage.
        __syncwarp();
        release_stage(stages);
    }

    const typename Operands::HalfOfOnes (&ones_)[Pipelines::Keys::kStages];
    RingConsumer<typename Pipelines::Keys, Proxy::kAsync> keys_;
    RingConsumer<typename Pipelines::ValueRings::Read, Proxy::kAsync> values_;
};

}  // namespace tmaasync
