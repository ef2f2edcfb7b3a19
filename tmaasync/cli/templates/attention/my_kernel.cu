// O = softmax(score(Q K^T)) V, head by head, with a score function of its own: here ALiBi with a
// causal mask. A persistent kernel after FlashAttention-3: one warpgroup loads, the others compute
// 64 queries each.
#include <tmaasync/attention.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// Changes a score before the softmax: write your own. Return masked_score() for a key that the
// query does not see.
struct Score {
    static constexpr bool kIsCausal = true;  // blocks of later keys are not loaded
    using Parameter = float;
    float scale;
    const Parameter* slopes;  // of the heads

    __device__ float operator()(float s, int head, int query, int key) const {
        return key > query ? masked_score() : s * scale + slopes[head] * (key - query);
    }
};

constexpr int kRows = QTile::side(0), kKeys = KTile::side(0), kTileRows = CONSUMERS * kRows;
constexpr float kLog2E = 1.44269504f;
using Operands = AttentionOperands<QTile, KTile, KTile, kKeys, QTile::side(2)>;
using Roles = WarpSpecialized<CONSUMERS>;
using Mask = WindowMask<kKeys, false, Score::kIsCausal>;  // which blocks of keys are loaded

// A tile of one head: kRows queries for each consumer. The producer's message.
struct Tile {
    int head, position, length;

    __device__ int first_row(int consumer) const { return position + consumer * kRows; }
    __device__ KeyBlocks blocks() const {
        return Mask{length}.blocks(position, kTileRows).all_masked();
    }
};

struct Tiles {
    using Cluster = ClusterShape<>;
    int heads, length;

    __device__ int count() const { return heads * count_tiles(length, kTileRows); }
    __device__ Tile at(int index) const {
        return {index % heads, index / heads * kTileRows, length};
    }
};

struct SharedMemory : AttentionPipelines<Operands, Tile, CONSUMERS, STAGES> {
    QTile::Shared output[CONSUMERS];
};
extern "C" __device__ const int my_kernel_shared_bytes = sizeof(SharedMemory);

// The work of a consumer on a tile outside the main loop.
struct Variant : AttentionVariant {
    QTile::Shared& output;
    const QTile& o;
    Score score;
    int consumer;

    __device__ KeyBlocks blocks(const Tile& tile) const { return tile.blocks(); }
    __device__ auto softmax(const Tile&) const { return Operands::Softmax{kLog2E}; }
    __device__ void mask_scores(const Tile& tile, int block, Operands::Scores& scores) const {
        const auto positions = RowPositions::from(tile.first_row(consumer));
        apply_to_scores(scores, positions, block * kKeys, [&](float s, int query, int key) {
            const bool is_inside = query < tile.length && key < tile.length;
            return is_inside ? score(s, tile.head, query, key) : masked_score();
        });
    }
    __device__ void store(
        const Tile& tile, Operands::Accumulators& rows, const float (&factors)[2]
    ) const {
        store_attention_rows<Operands::Output<QTile>>(output, rows, factors, consumer, [&] {
            o.async_store(output, {0, tile.head, tile.first_row(consumer)});
            commit_group();
        });
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) my_kernel(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ KTile v,
    const __grid_constant__ QTile o,
    const Score::Parameter* parameters,
    float scale,
    int heads,
    int length
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const StaticScheduler schedule(Tiles{heads, length});

    const auto produce = [&] {
        AttentionProducer<SharedMemory> producer(shared);
        for (const Tile tile : schedule) {
            const auto load_queries = [&](auto& to, auto& full, int consumer) {
                q.async_copy(to, full, {0, tile.head, tile.first_row(consumer)});
            };
            const auto load = [&](const KTile& from, auto& ring, int block) {
                const auto stage = ring.acquire();
                from.async_copy(*stage, stage.full(), {0, tile.head, block * kKeys});
            };
            producer.load(
                tile, tile.blocks(), load_queries,
                [&](auto& ring, int block) { load(k, ring, block); },
                [&](auto& ring, int block) { load(v, ring, block); }
            );
        }
        producer.end();
    };

    const auto consume = [&](int consumer) {
        AttentionConsumer<SharedMemory> rows(shared, consumer);
        rows.attend(Variant{{}, shared.output[consumer], o, {scale, parameters}, consumer});
    };

    Roles::run(shared, produce, consume, q, k, v, o);
}
