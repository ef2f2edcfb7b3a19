#pragma once

#include <tmaasync/attention_mask.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/ones.cuh>
#include <tmaasync/query_ring.cuh>
#include <tmaasync/ring.cuh>
#include <tmaasync/roles.cuh>
#include <tmaasync/softmax.cuh>
#include <tmaasync/value_ring.cuh>
#include <tmaasync/wgmma.cuh>

// The consumers of an attention kernel: scores S = Q K^T, probabilities P = softmax(S), output
// O += P V. After FlashAttention-3 (Shah et al. 2024): consumers alternate at the tensor cores
// (ping-pong), and within a consumer the MMAs of a block overlap the softmax of its neighbour
// (intra-warpgroup pipelining). The user supplies the masks, the score function and the epilogue.
namespace tmaasync {

// --- types ---------------------------------------------------------------------------------------

// For FP8, wgmma accepts V only with the keys contiguous: [kHeadDim][kBlockKeys]. With kTransposes
// V has the layout of K in memory, and warps of the producer transpose each block.
template <typename VTile, int kBlockKeys, int kHeadDim, bool kIsTransposed, bool kTransposes>
struct ValueOperand {
    static_assert(!kTransposes, "values of 16 bits are multiplied as they lie");
    using Type =
        WgmmaBuffer<typename VTile::Element, VTile::kSwizzle, Major::kMN, kBlockKeys, kHeadDim>;
};
template <typename VTile, int kBlockKeys, int kHeadDim>
struct ValueOperand<VTile, kBlockKeys, kHeadDim, true, false> {
    using Type =
        WgmmaBuffer<typename VTile::Element, VTile::kSwizzle, Major::kK, kHeadDim, kBlockKeys>;
};
template <typename VTile, int kBlockKeys, int kHeadDim>
struct ValueOperand<VTile, kBlockKeys, kHeadDim, true, true> {
    static constexpr Swizzle kSwizzle = kBlockKeys % 128 == 0 ? Swizzle::k128B : Swizzle::k64B;
    using Type = WgmmaBuffer<typename VTile::Element, kSwizzle, Major::kK, kHeadDim, kBlockKeys>;
};

// The operands of a consumer warpgroup, and the registers of a thread: 64 rows of queries, blocks
// of kBlockKeys keys, kHeadDimension columns. kTransposes: ValueTransposer transposes FP8 values.
// kHasFewRows: only the first 8 rows are queries, so that each thread needs only its first row.
// kKeepsExactSums: FP8 kernels also have the exact row_sum, for the log-sum-exp.
template <
    typename QTile,
    typename KTile,
    typename VTile,
    int kBlockKeys,
    int kHeadDimension,
    bool kTransposes = false,
    bool kHasFewRows = false,
    bool kKeepsExactSums = true>
struct AttentionOperands {
    using Element = typename QTile::Element;
    static constexpr int kRows = 64;
    static constexpr int kKeys = kBlockKeys;
    static constexpr int kHeadDim = kHeadDimension;
    static constexpr bool kIsFp8 = sizeof(Element) == 1;
    static constexpr bool kTransposesValues = kTransposes;
    static_assert(!kIsFp8 || kHeadDim % 64 == 0, "FP8 outputs are added up 64 columns at a time");
    static_assert(!kTransposes || kKeys % 64 == 0, "V transposed has panels of at least 64 keys");

    using QueryTile = QTile;
    using KeyTile = KTile;
    using ValueTile = VTile;
    using Q = WgmmaBuffer<Element, QTile::kSwizzle, Major::kK, kRows, kHeadDim>;
    using K = WgmmaBuffer<Element, KTile::kSwizzle, Major::kK, kKeys, kHeadDim>;
    using V = typename ValueOperand<VTile, kKeys, kHeadDim, kIsFp8, kTransposes>::Type;

    using Scores = float[kKeys / 2];
    using Probabilities = u32[kKeys * sizeof(Element) / 32][4];  // P as an A operand
    using Accumulators = float[kHeadDim / 2];

    // The layout of the staged output.
    template <typename OTile>
    using Output =
        WgmmaBuffer<typename OTile::Element, OTile::kSwizzle, Major::kK, kRows, kHeadDim>;

    // Rescaling thresholds within the range of P's type: e4m3 holds up to 448. FP8 kernels are
    // limited by the softmax, and do not support large bases: 2 to 3 % of the time. Keeping the
    // base saves 1.8 % in FP8, and 1.6 % at head dimension 64; with 128 columns of 16 bits it costs
    // up to 4 % at 32,768 keys (H100, 2026-11-28, benchmarks/compare_kernels.py).
    static constexpr int kRowsOfThread = kHasFewRows ? 1 : 2;
    using Softmax = OnlineSoftmax<
        kIsFp8 ? 2 : 8,
        kIsFp8 ? 6 : 0,
        kRowsOfThread,
        !kIsFp8,
        kIsFp8 || kHeadDim <= 64,
        !kIsFp8           ? ProbabilitySums::kExact
        : kKeepsExactSums ? ProbabilitySums::kBoth
                          : ProbabilitySums::kRounded>;

    // By which the sums of rounded probabilities are computed.
    using HalfOfOnes = tmaasync::HalfOfOnes<Element, kIsFp8>;
};

// The pipelines of a CTA in shared memory: tiles with their queries, blocks of keys, and blocks of
// values.
template <
    typename OperandTypes,
    typename Message,
    int kConsumerCount,
    int kStages,
    int kQueryBuffers = 2,
    typename Group = Multicast<1>>
struct AttentionPipelines {
    using Operands = OperandTypes;
    using Queries = QueryRing<typename Operands::QueryTile, Message, kQueryBuffers, kConsumerCount>;
    using Warps = ConsumerWarps<kConsumerCount * Queries::kConsumerWarps>;
    using HalfOfOnes = typename Operands::HalfOfOnes;
    using Keys = Ring<typename Operands::KeyTile::Shared, kStages, Warps, Group, HalfOfOnes>;
    using ValueRings = ValueRingsOf<Operands, kStages, Warps, Group, Operands::kTransposesValues>;
    static constexpr int kConsumers = kConsumerCount;

    // Queries come last: up to 1 % faster than first (benchmarks/compare_kernels.py on an H200,
    // 2026-11-22: 16 x 1024 causal, 32 heads of 64; 64 packed sequences of 512).
    Keys keys;
    ValueRings values;
    Queries queries;

    // Initialise the barriers; called by one thread.
    __device__ __forceinline__ void init() {
        queries.init();
        keys.init();
        HalfOfOnes::init(keys.side);
        values.init();
    }
};

// --- the producer --------------------------------------------------------------------------------

// The producer, which one thread runs.
template <typename Pipelines>
class AttentionProducer {
public:
    using Message = typename Pipelines::Queries::Message;

    __device__ __forceinline__ explicit AttentionProducer(Pipelines& pipelines)
        : queries_(pipelines.queries.producer()),
          keys_(pipelines.keys.producer()),
          values_(pipelines.values.loaded().producer()) {}

    // Hand over a tile and load its data in the order in which consumers wait for it: the keys of a
    // block, then the values of the previous block. load_queries(shared, full, consumer) loads the
    // rows of a consumer. load_keys(ring, block) and load_values(ring, block) acquire a stage of a
    // RingProducer and load a block into it.
    template <typename LoadQueries, typename LoadKeys, typename LoadValues>
    __device__ __forceinline__ void load(
        const Message& message,
        const KeyBlocks& blocks,
        const LoadQueries& load_queries,
        const LoadKeys& load_keys,
        const LoadValues& load_values
    ) {
        if (blocks.count() > 0) load_keys(keys_, blocks.end - 1);
        queries_.produce(message, load_queries);
        if (blocks.count() == 0) return;
        for (int block = blocks.end - 2; block >= blocks.first; --block) {
            load_keys(keys_, block);
            load_values(values_, block + 1);
        }
        load_values(values_, blocks.first);
    }

    // End the loops of the consumers and of ValueTransposer, after the last tile.
    __device__ __forceinline__ void end() {
        queries_.end();
        if constexpr (Pipelines::Operands::kTransposesValues) {
            static_cast<void>(values_.acquire_with(ValuesEnd{true}, 0));
        }
    }

private:
    QueryProducer<typename Pipelines::Queries> queries_;
    RingProducer<typename Pipelines::Keys> keys_;
    RingProducer<typename Pipelines::ValueRings::Loaded> values_;
};

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

    // Compute O += P V in two levels, and the sums of P's rows; wait for their end.
    template <typename Softmax>
    __device__ __forceinline__ void accumulate_pv(
        Accumulators& accumulators, Probabilities& probabilities, Softmax& softmax
    ) {
        float sums[4];
        Operands::HalfOfOnes::issue_sums(ones_, sums, probabilities);
        values_.wait();
#pragma unroll
        for (int first = 0; first < kHeadDim; first += kColumnsAtOnce) {
            accumulate_columns(accumulators, probabilities, first);
        }
        wgmma_fence_operands(sums);
        softmax.add_rounded(sums[0], sums[2]);
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
