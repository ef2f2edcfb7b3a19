#pragma once

#include <tmaasync/attention/mask.cuh>
#include <tmaasync/attention/ones.cuh>
#include <tmaasync/attention/query_ring.cuh>
#include <tmaasync/attention/softmax.cuh>
#include <tmaasync/attention/value_ring.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/wgmma.cuh>

// The operands of an attention kernel, the pipelines that they pass through, and their producer.
namespace tmaasync {

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
    // up to 4 % at 32,768 keys (H100, 2026-11-28, benchmarks/compare_kernels.py). FP8 kernels
    // without the exact row_sum spilled with it: up to 2 % of the time (H200, 2026-11-29).
    static constexpr int kRowsOfThread = kHasFewRows ? 1 : 2;
    using Softmax = OnlineSoftmax<
        kIsFp8 ? 2 : 8,
        kIsFp8 ? 6 : 0,
        kRowsOfThread,
        !kIsFp8,
        (kIsFp8 && kKeepsExactSums) || kHeadDim <= 64,
        !kIsFp8           ? ProbabilitySums::kExact
        : kKeepsExactSums ? ProbabilitySums::kBoth
                          : ProbabilitySums::kRounded>;

    // By which row_sum of the rounded probabilities is computed.
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

}  // namespace tmaasync
