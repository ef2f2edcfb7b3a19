// O = softmax(score(Q K^T)) V, head by head, with a score function of its own: here ALiBi with a
// causal mask. A persistent kernel after FlashAttention-3: one warpgroup loads, the others compute
// 64 queries each.
#include <tmaasync/attention.cuh>
#include <tmaasync/roles.cuh>
#include <tmaasync/scheduler.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// What happens to a score before the softmax: write your own. Return masked_score() for a key that
// the query does not see.
struct Score {
    float scale;
    const float* slopes;  // of the heads

    __device__ float operator()(float s, int head, int query, int key) const {
        return key > query ? masked_score() : s * scale + slopes[head] * (key - query);
    }
};

constexpr int kRows = 64, kKeys = KTile::side(0), kHeadDim = KTile::side(2), kConsumers = 2;
constexpr float kLog2E = 1.44269504f;
using Operands = AttentionOperands<QTile, KTile, KTile, kKeys, kHeadDim>;
using Roles = WarpSpecialized<kConsumers>;
// Which blocks of keys are loaded; all of them without a causal mask: <kKeys, false, false>.
using Mask = WindowMask<kKeys, false, true>;

// A tile: the queries of one head from a row on, kRows for each consumer.
struct Task {
    int head, first_row, length;

    __device__ KeyBlocks blocks() const {
        return Mask{length}.blocks(first_row, first_row + kRows * kConsumers - 1).all_masked();
    }
    __device__ Coordinates<3> at(int row) const { return {0, head, row}; }
};

struct QueryTiles {
    using Cluster = ClusterShape<>;
    int length, heads;

    __device__ int tiles() const { return count_tiles(length, kRows * kConsumers); }
    __device__ int count() const { return heads * tiles(); }
    __device__ Task at(int index) const {
        return {index / tiles(), index % tiles() * kRows * kConsumers, length};
    }
};

using Pipelines = AttentionPipelines<Operands, Task, kConsumers, STAGES>;
struct SharedMemory {
    Pipelines pipelines;
    QTile::Shared output[kConsumers];

    __device__ void init() { pipelines.init(); }
};
extern "C" __device__ const int my_kernel_shared_bytes = sizeof(SharedMemory);

// What a consumer does with its tiles besides the main loop.
struct Consumer : AttentionTiles {
    const QTile& o;
    QTile::Shared& staged;
    Score score;
    int number;

    __device__ KeyBlocks blocks(const Task& task) const { return task.blocks(); }
    __device__ Operands::Softmax softmax(const Task&) const { return {kLog2E}; }

    template <typename Scores>
    __device__ void mask_scores(const Task& task, int block, Scores& scores) const {
        const int row = task.first_row + number * kRows;
        const int own = row + accumulator_row(thread_in_warpgroup(), 0);
        const auto scored = [&](float s, int query, int key) {
            const bool is_inside = query < task.length && key < task.length;
            return is_inside ? score(s, task.head, query, key) : masked_score();
        };
        transform_scores(scores, {own, own + 8}, block * kKeys, scored);
    }

    template <typename Queries>
    __device__ void store(
        const Task& task,
        Operands::Accumulators& accumulators,
        const float (&normalizers)[2],
        const Queries&
    ) const {
        const NamedBarrier<128> warpgroup{1u + number};
        const auto store_staged = [&] {
            o.async_store(staged, task.at(task.first_row + number * kRows));
            commit_group();
        };
        store_attention_rows<Operands::Q, kHeadDim>(
            staged, accumulators, normalizers, warpgroup, store_staged
        );
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) my_kernel(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ KTile v,
    const __grid_constant__ QTile o,
    const float* slopes,
    float scale,
    int length,
    int heads
) {
    auto& shared = dynamic_shared<SharedMemory>();
    auto& pipelines = shared.pipelines;
    const StaticScheduler schedule(QueryTiles{length, heads});

    const auto produce = [&] {
        auto queries = pipelines.queries.producer();
        auto keys = pipelines.keys.producer();
        auto values = pipelines.values.producer();
        for (const auto task : schedule) {
            const auto load_queries = [&](auto& tile, auto& full, int consumer) {
                q.async_copy(tile, full, task.at(task.first_row + consumer * kRows));
            };
            const auto load_keys = [&](int block) {
                const auto stage = keys.acquire();
                k.async_copy(*stage, stage.full(), task.at(block * kKeys));
            };
            const auto load_values = [&](int block) {
                const auto stage = values.acquire();
                v.async_copy(*stage, stage.full(), task.at(block * kKeys));
            };
            load_attention_tile(
                task.blocks(), [&] { queries.produce(task, load_queries); }, load_keys, load_values
            );
        }
        queries.end();
    };

    const auto consume = [&](int number) {
        AttentionConsumer<Pipelines, MmaOrder<kConsumers>> consumer(pipelines, number);
        consumer.attend(Consumer{{}, o, shared.output[number], {scale, slopes}, number});
    };

    Roles::run(shared, produce, consume, q, k, v, o);
}
