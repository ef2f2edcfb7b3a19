// New here: a ragged tensor map. Sequences of different lengths are packed without
// padding, and TMA stops at the end of each: loads fill with zeros from there on, stores
// are clipped.
//
// FlashAttention's forward pass, softmax(Q K^T * scale) V per sequence and head: a message
// with every tile of queries, pipelines of keys and of values, a mask, an online softmax.
#include <tmaasync/attention.cuh>
#include <tmaasync/roles.cuh>
#include <tmaasync/scheduler.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRows = Rows::kRows;  // queries of a consumer, and keys of a block
constexpr int kHeadDim = Rows::side(2), kConsumers = 2;
using Operands = AttentionOperands<Rows, Rows, Rows, kRows, kHeadDim>;
using Roles = WarpSpecialized<kConsumers>;
using Mask = WindowMask<kRows, false, false>;  // every key up to the end

// A tile: queries of one head of a sequence. Rows count from the start of the sequence.
struct Task {
    RaggedSequence sequence;
    int head, first_row;

    __device__ Mask mask() const { return {sequence.length}; }
    __device__ KeyBlocks blocks() const { return mask().blocks(first_row, first_row); }
    __device__ Coordinates<3> at(int row) const { return {0, head, row}; }
};

// All tiles, as many for every sequence as the longest has.
struct QueryTiles {
    using Cluster = ClusterShape<>;
    const int* cu_seqlens;
    int sequences, heads, tiles;

    __device__ int count() const { return sequences * heads * tiles; }
    __device__ Task at(int index) const {
        const auto sequence = RaggedSequence::of(cu_seqlens, index / tiles / heads);
        return {sequence, index / tiles % heads, index % tiles * kRows * kConsumers};
    }
};

using Pipelines = AttentionPipelines<Operands, Task, kConsumers, STAGES>;
struct SharedMemory {
    Pipelines pipelines;
    Rows::Shared output[kConsumers];

    __device__ void init() { pipelines.init(); }
};
extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

// What a consumer does with a tile besides the main loop.
struct Consumer : AttentionTiles {
    const Rows& o;
    Rows::Shared& staged;
    int number;
    float scale_log2;  // the scale times log2(e): the hardware computes powers of two

    __device__ KeyBlocks blocks(const Task& task) const { return task.blocks(); }
    __device__ Operands::Softmax softmax(const Task&) const { return {scale_log2}; }

    // Keys beyond the end were loaded as zeros. Their scores would be 0, and would count.
    template <typename Scores>
    __device__ void mask_scores(const Task& task, int block, Scores& scores) const {
        task.mask().mask(scores, {0, 0}, block);
    }

    template <typename Queries>
    __device__ void store(
        const Task& task,
        Operands::Accumulators& accumulators,
        const float (&normalizers)[2],
        const Queries&
    ) const {
        const NamedBarrier<128> warpgroup{1u + number};
        const int row = task.first_row + number * kRows;
        const auto store_staged = [&] {
            o.async_store(staged, task.sequence, task.at(row));  // clipped at the end
            commit_group();
        };
        store_attention_rows<Operands::Q, kHeadDim>(
            staged, accumulators, normalizers, warpgroup, store_staged
        );
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) attention(
    const __grid_constant__ Rows q,
    const __grid_constant__ Rows k,
    const __grid_constant__ Rows v,
    const __grid_constant__ Rows o,
    const int* cu_seqlens,
    int sequences,
    int heads,
    int tiles,
    float scale_log2
) {
    auto& shared = dynamic_shared<SharedMemory>();
    auto& pipelines = shared.pipelines;
    const StaticScheduler schedule(QueryTiles{cu_seqlens, sequences, heads, tiles});

    const auto produce = [&] {
        auto queries = pipelines.queries.producer();
        auto keys = pipelines.keys.producer();
        auto values = pipelines.values.producer();
        for (const auto task : schedule) {
            if (task.first_row >= task.sequence.length) continue;
            const auto load_queries = [&](auto& tile, auto& full, int number) {
                q.async_copy(tile, full, task.sequence, task.at(task.first_row + number * kRows));
            };
            const auto load = [&](auto& producer, const Rows& rows, int block) {
                const auto stage = producer.acquire();
                rows.async_copy(*stage, stage.full(), task.sequence, task.at(block * kRows));
            };
            load_attention_tile(
                task.blocks(), [&] { queries.produce(task, load_queries); },
                [&](int block) { load(keys, k, block); }, [&](int block) { load(values, v, block); }
            );
        }
        queries.end();
    };

    const auto consume = [&](int number) {
        AttentionConsumer<Pipelines, MmaOrder<kConsumers>> consumer(pipelines, number);
        consumer.attend(Consumer{{}, o, shared.output[number], number, scale_log2});
    };

    Roles::run(shared, produce, consume);
}
