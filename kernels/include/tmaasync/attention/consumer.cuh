#pragma once

#include <tmaasync/attention/pipelines.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/structured/roles.cuh>

// The consumers of an attention kernel: scores S = Q K^T, probabilities P = softmax(S), output
// O += P V. After FlashAttention-3 (Shah et al. 2024): consumers alternate at the tensor cores
// (ping-pong), and within a consumer the MMAs of a block overlap the softmax of its neighbour
// (intra-warpgroup pipelining). The user supplies the masks, the score function and the epilogue.
namespace tmaasync {

// --- the consumers -------------------------------------------------------------------------------

// The functions of an attention variant, which a consumer calls with the message of a tile. Derive
// from it and define blocks(), softmax(), mask_scores() and store(); the other functions have
// defaults. `scores`, `accumulators` and the two rows of a thread are as in fragment.cuh.
//   KeyBlocks blocks(message)                        the blocks that the consumer's rows need
//   auto softmax(message)                            a new OnlineSoftmax for the tile
//   void transform_scores(message, block, scores)    for every block: softcap, ALiBi
//   void mask_scores(message, block, scores)         for blocks that need a mask
//   void finish(message, softmax, normalizers)       sets the factors of the thread's two rows
//   void store(message, accumulators, normalizers)   the epilogue
struct AttentionVariant {
    // Whether a cluster may first load blocks that only another CTA needs;
    // blocks_to_skip(message, blocks) returns their number.
    static constexpr bool kSkipsBlocks = false;
    // Whether store() releases the queries, because their memory stages the output.
    static constexpr bool kStoreReleasesQueries = false;

    template <typename Message>
    __device__ __forceinline__ i32 blocks_to_skip(const Message&, const KeyBlocks&) const {
        return 0;
    }
    template <typename Message, typename Scores>
    __device__ __forceinline__ void transform_scores(const Message&, i32, Scores&) const {}

    template <typename Message, typename Softmax>
    __device__ __forceinline__ void finish(
        const Message&, const Softmax& softmax, float (&normalizers)[2]
    ) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            normalizers[half] = inverse_row_sum(softmax.multiplied_sum(half));
        }
    }
};

// A consumer warpgroup: takes tiles, and computes its rows of each.
template <typename Pipelines, typename Order = MmaOrder<Pipelines::kConsumers>>
class AttentionConsumer {
public:
    using Operands = typename Pipelines::Operands;
    using Scores = typename Operands::Scores;
    using Probabilities = typename Operands::Probabilities;
    using Accumulators = typename Operands::Accumulators;

    __device__ __forceinline__ AttentionConsumer(Pipelines& pipelines, int index)
        : index_(index),
          ones_(pipelines.keys.side),
          queries_(pipelines.queries.consumer(index)),
          keys_(pipelines.keys.template consumer<Proxy::kAsync>()),
          values_(pipelines.values.read().template consumer<Proxy::kAsync>()) {}

    // Compute all tiles that the producer hands over.
    template <typename Variant>
    __device__ __forceinline__ void attend(const Variant& variant) {
        // The last consumer lets the first consumer begin.
        if (index_ == kConsumers - 1) release_next_consumer();
        queries_.take();
        while (!queries_.is_end()) {
            const auto blocks = blocks_of(variant);
            if constexpr (Variant::kSkipsBlocks) discard_blocks(blocks_to_skip(variant, blocks));
            if (blocks.count() > 0) {
                attend_run(variant, blocks);
            } else {
                attend_to_nothing(variant);
            }
        }
        if (thread_in_warpgroup() == 0) wait_group_read<0>();
        // Match the last release, so that the named barrier completes.
        if (index_ == 0) Order::wait(0);
    }

private:
    static constexpr int kConsumers = Pipelines::kConsumers;
    static constexpr int kBuffers = Pipelines::Queries::kBuffers;
    static constexpr int kHeadDim = Operands::kHeadDim;

    // Two-level accumulation for FP8 (as in DeepSeek-V3 and SageAttention2). The tensor cores' FP8
    // accumulators keep only about 14 bits and truncate towards zero: 16384 equal probabilities
    // would add up to three quarters of their sum (measured on an H200). So the tensor cores
    // accumulate only one block, and blocks are added in fp32. Registers for both are free only
    // while no scores are live, and only for some columns at once: so a consumer's MMAs run one
    // after the other.
    static constexpr bool kAccumulatesInTwoLevels = Operands::kIsFp8;
    static constexpr int kColumnsAtOnce = kHeadDim == 192 ? 96 : 64;

    // Whether the first S of a tile overlaps the last P V of the previous tile.
    static constexpr bool kTilesOverlap = kBuffers > 1 && !kAccumulatesInTwoLevels;

    // --- tiles ---

    // Compute the current tile, which has keys, and the tiles after it as long as they have keys
    // and no blocks to skip: the tensor cores stay busy between tiles. Then take the next tile.
    template <typename Variant>
    __device__ __forceinline__ void attend_run(const Variant& variant, KeyBlocks blocks) {
        auto softmax = variant.softmax(queries_.message());
        Scores scores;
        Probabilities probabilities;
        Accumulators accumulators;
        clear(accumulators);
        start_tile(variant, blocks, softmax, scores, probabilities);
        while (true) {
            continue_tile(variant, blocks, softmax, scores, probabilities, accumulators);
            if constexpr (kAccumulatesInTwoLevels) {
                accumulate_pv(accumulators, probabilities, softmax);
            }
            float normalizers[2];
            variant.finish(queries_.message(), softmax, normalizers);
            if constexpr (kBuffers > 1) queries_.take();
            if constexpr (kTilesOverlap) {
                blocks = blocks_of(variant);
                if (is_next_in_pipeline(variant, blocks)) {
                    softmax = variant.softmax(queries_.message());
                    overlap_tiles(variant, blocks, softmax, scores, probabilities, accumulators);
                    variant.store(queries_.message(1), accumulators, normalizers);
                    clear(accumulators);
                    continue;
                }
            }
            if constexpr (!kAccumulatesInTwoLevels) {
                issue_pv(accumulators, probabilities);
                wait_for_pv(accumulators, probabilities);
            }
            variant.store(queries_.message(kBuffers - 1), accumulators, normalizers);
            if constexpr (kBuffers == 1) queries_.take();
            return;
        }
    }

    // Compute a tile without keys.
    template <typename Variant>
    __device__ __forceinline__ void attend_to_nothing(const Variant& variant) {
        release_queries<Variant>();
        Accumulators accumulators;
        clear(accumulators);
        float normalizers[2];
        variant.finish(queries_.message(), variant.softmax(queries_.message()), normalizers);
        variant.store(queries_.message(), accumulators, normalizers);
        queries_.take();
    }

    // The blocks of the current tile; none after the last tile.
    template <typename Variant>
    __device__ __forceinline__ KeyBlocks blocks_of(const Variant& variant) const {
        return queries_.is_end() ? KeyBlocks{} : variant.blocks(queries_.message());
    }

    // The number of blocks that the cluster loads before the blocks of the tile.
    template <typename Variant>
    __device__ __forceinline__ i32
    blocks_to_skip(const Variant& variant, const KeyBlocks& blocks) const {
        return queries_.is_end() ? 0 : variant.blocks_to_skip(queries_.message(), blocks);
    }

    // Whether the tile's first block is the next block in the pipeline.
    template <typename Variant>
    __device__ __forceinline__ bool is_next_in_pipeline(
        const Variant& variant, const KeyBlocks& blocks
    ) const {
        if constexpr (Variant::kSkipsBlocks) {
            if (blocks_to_skip(variant, blocks) > 0) return false;
        }
        return blocks.count() > 0;
    }

    // --- blocks of a tile ---

    // Process the first block of a tile; no MMA is in flight.
    template <typename Variant, typename Softmax>
    __device__ __forceinline__ void start_tile(
        const Variant& variant,
        const KeyBlocks& blocks,
        Softmax& softmax,
        Scores& scores,
        Probabilities& probabilities
    ) {
        float rescale[2];
        issue_qk(scores);
        wait_for_qk<0>(scores);
        apply_softmax<true>(variant, blocks, blocks.end - 1, softmax, scores, rescale);
        accumulators_to_a<typename Operands::Element>(probabilities, scores);
    }

    // Process all blocks of a tile except the first. The caller computes P V of the last block.
    template <typename Variant, typename Softmax>
    __device__ __forceinline__ void continue_tile(
        const Variant& variant,
        const KeyBlocks& blocks,
        Softmax& softmax,
        Scores& scores,
        Probabilities& probabilities,
        Accumulators& accumulators
    ) {
        int block = blocks.end - 2;
        for (; block >= max(blocks.unmasked_end, blocks.first); --block) {
            step<true>(variant, blocks, block, softmax, scores, probabilities, accumulators);
        }
        for (; block >= blocks.unmasked_first; --block) {
            step<false>(variant, blocks, block, softmax, scores, probabilities, accumulators);
        }
        for (; block >= blocks.first; --block) {
            step<true>(variant, blocks, block, softmax, scores, probabilities, accumulators);
        }
        release_queries<Variant>();
    }

    // Overlap the last P V of a tile with the first block of the next tile.
    template <typename Variant, typename Softmax>
    __device__ __forceinline__ void overlap_tiles(
        const Variant& variant,
        const KeyBlocks& blocks,
        Softmax& softmax,
        Scores& scores,
        Probabilities& probabilities,
        Accumulators& accumulators
    ) {
        float rescale[2];
        overlap_blocks<true>(
            variant, blocks, blocks.end - 1, softmax, scores, probabilities, accumulators, rescale
        );
    }

    // Process another block of the same tile.
    template <bool kMayBeMasked, typename Variant, typename Softmax>
    __device__ __forceinline__ void step(
        const Variant& variant,
        const KeyBlocks& blocks,
        int block,
        Softmax& softmax,
        Scores& scores,
        Probabilities& probabilities,
        Accumulators& accumulators
    ) {
        float rescale[2];
        overlap_blocks<kMayBeMasked>(
            variant, blocks, block, softmax, scores, probabilities, accumulators, rescale
        );
        if (any_rescale(rescale)) scale_rows(accumulators, rescale);
    }

    // Compute P of a block, and O += P V of the previous block. Both MMAs are issued in this
    // consumer's turn, and the softmax overlaps P V. With two-level accumulation P V comes first,
    // and the softmax overlaps the MMAs of other consumers.
    template <bool kMayBeMasked, typename Variant, typename Softmax>
    __device__ __forceinline__ void overlap_blocks(
        const Variant& variant,
        const KeyBlocks& blocks,
        int block,
        Softmax& softmax,
        Scores& scores,
        Probabilities& probabilities,
        Accumulators& accumulators,
        float (&rescale)[2]
    ) {
        Order::wait(index_);
        if constexpr (kAccumulatesInTwoLevels) {
            accumulate_pv(accumulators, probabilities, softmax);
        }
        issue_qk(scores);
        if constexpr (!kAccumulatesInTwoLevels) issue_pv(accumulators, probabilities);
        release_next_consumer();
        wait_for_qk<kAccumulatesInTwoLevels ? 0 : 1>(scores);
        apply_softmax<kMayBeMasked>(variant, blocks, block, softmax, scores, rescale);
        if constexpr (!kAccumulatesInTwoLevels) wait_for_pv(accumulators, probabilities);
        accumulators_to_a<typename Operands::Element>(probabilities, scores);
    }

    // P = softmax(S), in place. kMayBeMasked: the block may need a mask.
    template <bool kMayBeMasked, typename Variant, typename Softmax>
    __device__ __forceinline__ void apply_softmax(
        const Variant& variant,
        const KeyBlocks& blocks,
        int block,
        Softmax& softmax,
        Scores& scores,
        float (&rescale)[2]
    ) {
        variant.transform_scores(queries_.message(), block, scores);
        if constexpr (kMayBeMasked) {
            if (!blocks.is_unmasked(block)) variant.mask_scores(queries_.message(), block, scores);
        }
        softmax.template update<kMayBeMasked>(scores, rescale);
    }

    // --- MMAs ---

    // Issue S = Q K^T as one wgmma group.
    __device__ __forceinline__ void issue_qk(Scores& scores) {
        const u64 q = Operands::Q::descriptor(queries_.queries(), 0);
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
        values_.wait();
#pragma unroll
        for (int first = 0; first < kHeadDim; first += kColumnsAtOnce) {
            accumulate_columns(accumulators, probabilities, first);
        }
        wgmma_fence_operands(row_sum);
        softmax.add_rounded(row_sum[0], row_sum[2]);
        release_stage(values_);
    }

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

    // --- pipelines ---

    __device__ __forceinline__ void release_next_consumer() const {
        Order::release(index_ == kConsumers - 1 ? 0 : index_ + 1);
    }

    // Release the queries after the last S of the tile, unless the output is staged there.
    template <typename Variant>
    __device__ __forceinline__ void release_queries() const {
        if constexpr (!Variant::kStoreReleasesQueries) queries_.release();
    }

    // Release the current stage of a ring's consumer.
    template <typename Stages>
    __device__ __forceinline__ static void release_stage(Stages& stages) {
        stages.release(stages.index());
        stages.step();
    }

    // Release blocks that only the peer CTA needs.
    __device__ __forceinline__ void discard_blocks(i32 count) {
        for (i32 i = 0; i < count; ++i) {
            discard_stage(keys_);
            discard_stage(values_);
        }
    }

    template <typename Stages>
    __device__ __forceinline__ static void discard_stage(Stages& stages) {
        stages.wait();
        // No other lane of the warp may still wait for the stage.
        __syncwarp();
        release_stage(stages);
    }

    __device__ __forceinline__ static void clear(Accumulators& accumulators) {
#pragma unroll
        for (float& accumulator : accumulators) accumulator = 0;
    }

    int index_;
    const typename Operands::HalfOfOnes (&ones_)[Pipelines::Keys::kStages];
    QueryConsumer<typename Pipelines::Queries> queries_;
    RingConsumer<typename Pipelines::Keys, Proxy::kAsync> keys_;
    RingConsumer<typename Pipelines::ValueRings::Read, Proxy::kAsync> values_;
};

// --- the epilogue --------------------------------------------------------------------------------

// Multiply the accumulators' rows by `normalizers`, stage them in `staged` as Output, and call
// store_staged() in one thread, which issues TMA stores, commit_group() and any further steps.
// Called by a consumer warpgroup, which uses named barrier 1 + consumer.
template <typename Output, typename Shared, int kAccumulators, typename StoreStaged>
__device__ __forceinline__ void store_attention_rows(
    Shared& staged,
    float (&accumulators)[kAccumulators],
    const float (&normalizers)[2],
    int consumer,
    const StoreStaged& store_staged
) {
    const NamedBarrier<128> warpgroup{1u + consumer};
    const bool leads = thread_in_warpgroup() == 0;
    if (leads) wait_group_read<0>();  // until the previous store has read `staged`
    warpgroup.sync();
    scale_rows(accumulators, normalizers);
    store_accumulators<Output, 2 * kAccumulators>(staged, accumulators);
    fence_async_view_proxy();
    warpgroup.sync();
    if (leads) store_staged();
    // Reconverge: the assembler keeps warp-uniform values, such as pipeline states, in uniform
    // registers only if it knows that the warp has converged.
    __syncwarp();
}

}  // namespace tmaasync
