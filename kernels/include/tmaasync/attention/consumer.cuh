#pragma once

#include <tmaasync/attention/mask.cuh>
#include <tmaasync/attention/mmas.cuh>
#include <tmaasync/attention/query_ring.cuh>
#include <tmaasync/attention/softmax.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/fragment.cuh>
#include <tmaasync/structured/mma_order.cuh>
#include <tmaasync/warp.cuh>

// The consumers of an attention kernel: scores S = Q K^T, probabilities P = softmax(S), output
// O += P V. After FlashAttention-3 (Shah et al. 2024): consumers alternate at the tensor cores
// (ping-pong), and within a consumer the MMAs of a block overlap the softmax of its neighbour
// (intra-warpgroup pipelining). The user supplies the masks, the score function and the epilogue.
namespace tmaasync {

// A consumer warpgroup: takes tiles, and computes its rows of each.
template <typename Pipelines, typename Order = MmaOrder<Pipelines::kConsumers>>
class AttentionConsumer {
public:
    using Operands = typename Pipelines::Operands;
    using Scores = typename Operands::Scores;
    using Probabilities = typename Operands::Probabilities;
    using Accumulators = typename Operands::Accumulators;

    __device__ __forceinline__ AttentionConsumer(Pipelines& pipelines, int index)
        : index_(index), queries_(pipelines.queries.consumer(index)), mmas_(pipelines) {}

    // Compute all tiles that the producer hands over.
    template <typename Variant>
    __device__ __forceinline__ void attend(const Variant& variant) {
        // The last consumer lets the first consumer begin.
        if (index_ == kConsumers - 1) release_next_consumer();
        queries_.take();
        while (!queries_.is_end()) {
            const auto blocks = blocks_of(variant);
            if constexpr (Variant::kSkipsBlocks) {
                mmas_.discard_blocks(blocks_to_skip(variant, blocks));
            }
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
    static constexpr bool kAccumulatesInTwoLevels =
        AttentionMmas<Pipelines>::kAccumulatesInTwoLevels;

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
                mmas_.accumulate_pv(accumulators, probabilities, softmax);
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
                mmas_.issue_pv(accumulators, probabilities);
                mmas_.wait_for_pv(accumulators, probabilities);
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
        mmas_.issue_qk(scores, queries_.queries());
        mmas_.template wait_for_qk<0>(scores);
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
            mmas_.accumulate_pv(accumulators, probabilities, softmax);
        }
        mmas_.issue_qk(scores, queries_.queries());
        if constexpr (!kAccumulatesInTwoLevels) mmas_.issue_pv(accumulators, probabilities);
        release_next_consumer();
        mmas_.template wait_for_qk<kAccumulatesInTwoLevels ? 0 : 1>(scores);
        apply_softmax<kMayBeMasked>(variant, blocks, block, softmax, scores, rescale);
        if constexpr (!kAccumulatesInTwoLevels) mmas_.wait_for_pv(accumulators, probabilities);
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

    // --- pipelines ---

    __device__ __forceinline__ void release_next_consumer() const {
        Order::release(index_ == kConsumers - 1 ? 0 : index_ + 1);
    }

    // Release the queries after the last S of the tile, unless the output is staged there.
    template <typename Variant>
    __device__ __forceinline__ void release_queries() const {
        if constexpr (!Variant::kStoreReleasesQueries) queries_.release();
    }

    __device__ __forceinline__ static void clear(Accumulators& accumulators) {
#pragma unroll
        for (float& accumulator : accumulators) accumulator = 0;
    }

    int index_;
    QueryConsumer<typename Pipelines::Queries> queries_;
    AttentionMmas<Pipelines> mmas_;
};

}  // namespace tmaasync
