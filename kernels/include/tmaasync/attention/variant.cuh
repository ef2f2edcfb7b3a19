#pragma once

#include <tmaasync/attention/mask.cuh>
#include <tmaasync/attention/softmax.cuh>

namespace tmaasync {

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

}  // namespace tmaasync
