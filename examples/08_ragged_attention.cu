// New here: a ragged tensor map. Sequences of different lengths are packed without padding, and TMA
// stops at the end of each: loads fill with zeros from there on, stores are clipped.
//
// FlashAttention's forward pass, softmax(Q K^T * scale) V per sequence and head, causal or not,
// with fewer heads of keys than of queries (GQA). The main loop is the one of ops.varlen_attention.
#include <tmaasync/attention.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kRows = QTile::side(0), kKeys = KTile::side(0), kTileRows = CONSUMERS * kRows;
using Operands = AttentionOperands<QTile, KTile, KTile, kKeys, QTile::side(2)>;
using Roles = WarpSpecialized<CONSUMERS, RegisterSplit<24, 240>>;

// A tile of one head of a sequence: kRows queries for each consumer. The producer's message.
struct Tile {
    RaggedSequence rows;
    i32 head;
    i32 position;  // of its first query in the sequence

    __device__ auto mask() const { return WindowMask<kKeys, false, CAUSAL>{rows.length}; }
    __device__ int first_row(int consumer) const { return position + consumer * kRows; }
    __device__ KeyBlocks blocks() const { return mask().blocks(position, kTileRows); }
};

using Tiles = SequenceTiles<Tile, kTileRows>;

struct SharedMemory : AttentionPipelines<Operands, Tile, CONSUMERS, STAGES> {
    QTile::Shared output[CONSUMERS];
};
extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

// The work of a consumer on a tile outside the main loop.
struct Variant : AttentionVariant {
    QTile::Shared& output;
    const QTile& o;
    int consumer;
    float scale_log2;

    __device__ KeyBlocks blocks(const Tile& tile) const {
        return tile.blocks().for_rows(tile.mask().blocks(tile.first_row(consumer), kRows));
    }
    __device__ auto softmax(const Tile&) const { return Operands::Softmax{scale_log2}; }
    __device__ void mask_scores(const Tile& tile, int block, Operands::Scores& scores) const {
        tile.mask().mask(scores, RowPositions::from(tile.first_row(consumer)), block);
    }
    __device__ void store(
        const Tile& tile, Operands::Accumulators& rows, const float (&factors)[2]
    ) const {
        store_attention_rows<Operands::Output<QTile>>(output, rows, factors, consumer, [&] {
            o.async_store(output, tile.rows, {0, tile.head, tile.first_row(consumer)});
            commit_group();
        });
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) attention(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ KTile v,
    const __grid_constant__ QTile o,
    const i32* cu_seqlens,
    u32* tile_counter,
    int sequences,
    int heads,
    int heads_per_kv_head,
    int rows,
    float scale_log2
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const auto produce = [&] {
        AttentionProducer<SharedMemory> producer(shared);
        DynamicScheduler<Tiles> schedule({cu_seqlens, sequences, heads, rows}, tile_counter);
        while (!schedule.done()) {
            const Tile tile = schedule.tile();
            schedule.step();  // the atomic takes as long as the loads
            if (tile.position >= tile.rows.length) continue;
            const auto load_queries = [&](auto& to, auto& full, int consumer) {
                q.async_copy(to, full, tile.rows, {0, tile.head, tile.first_row(consumer)});
            };
            const int head = tile.head / heads_per_kv_head;
            const auto load = [&](const KTile& from, auto& ring, int block) {
                const auto stage = ring.acquire();
                from.async_copy(*stage, stage.full(), tile.rows, {0, head, block * kKeys});
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
        rows.attend(Variant{{}, shared.output[consumer], o, consumer, scale_log2});
    };
    Roles::run(shared, produce, consume, q, k, v, o);
}
