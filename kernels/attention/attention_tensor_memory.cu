// Attention on Blackwell's tensor memory: O = softmax(scale * Q K^T + mask) V, head by head, and
// the log-sum-exp of every row. A warp-specialised persistent kernel after FlashAttention-4: two
// query tiles are in flight, S, P and O lie in tensor memory, and O is rescaled by a warpgroup of
// its own, lazily. Compiled and emulated, not run on a chip.
//
//   QTile, OTile    128 rows of queries or output, over the whole head dimension
//   KTile, VTile    BLOCK_N rows of keys or values
//   CONSUMERS       halves of query tiles, of 64 rows each, as in attention_work.cu: 4, or 2 for a
//                   single query tile
//   STAGES          stages of the pipeline; a block takes one for its keys and one for its values
//   HEADS_PER_TILE, BLOCK_N, HEAD_DIM, IS_PACKED, PAGE_SIZE, ONE_TILE_EACH, HAS_LEFT, HAS_RIGHT,
//   HAS_SOFTCAP, HAS_LSE    as in attention.cu
//   CLUSTER         1
//   SPLITS_KEYS     split-KV: attention_combine.cu follows
//
// `partials`, `schedule`, `cu_seqlens_q`, `cu_seqlens_k`, `page_table` and `waves` are as in
// attention.cu.
//
// Grid: any number of CTAs, of 256 + 64 * CONSUMERS threads: a producer warpgroup with the thread
// that multiplies, a softmax warpgroup for each query tile, and one that corrects and stores. At
// the edges of the arrays TMA fills loads with zeros and clips stores.
#include <tmaasync/structured/roles.cuh>

#include "loads.cuh"
#include "tensor_memory.cuh"
#include "tensor_memory_roles.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention;

// Registers per thread of each role. A CTA has 64 Ki, and starts with as many for each thread.
constexpr int kProducerRegisters = kQueryTiles == 2 ? 48 : 80;
constexpr int kSoftmaxRegisters = kQueryTiles == 2 ? 200 : 232;
constexpr int kCorrectionRegisters = 64;
static_assert(
    kProducerRegisters + kQueryTiles * kSoftmaxRegisters + kCorrectionRegisters <=
        (kQueryTiles == 2 ? 512 : 504),
    "setmaxnreg.inc would wait for ever"
);
using Roles = WarpSpecialized<kQueryTiles + 1, ProducerRegisters<kProducerRegisters>>;

extern "C" __device__ const int attention_tensor_memory_shared_bytes = sizeof(SharedMemory);

// The thread that loads the queries of each tile, then block by block its keys and values.
struct Producer {
    const Problem& problem;
    const QTile& q;
    const KTile& k;
    const VTile& v;
    SharedMemory& shared;
    TaskWriter tasks;
    RingProducer<decltype(SharedMemory::blocks)> stages;
    u32 tiles = 0;

    __device__ __forceinline__ void load(const Tile& tile) {
        tasks.write({tile, false});
        const KeyBlocks blocks = tile.blocks(problem);
        if (blocks.count() == 0) return;
        for (int index = 0; index < kQueryTiles; ++index) {
            auto& barriers = shared.tiles[index];
            barriers.queries_empty.wait(tiles & 1 ^ 1);
            barriers.queries_full.expect_bytes(QTile::kBytes);
            const i32 row = tile.position + index * kQueryPositions;
            load_rows(q, shared.queries[index], barriers.queries_full, tile, row);
        }
        ++tiles;
        const i32 kv_head = tile.head / problem.heads_per_kv_head;
        for (i32 block = blocks.end - 1; block >= blocks.first; --block) {
            load_block<kPages, false>(k, stages, problem, tile, tile.entry.keys, kv_head, block);
            load_block<kPages, false>(v, stages, problem, tile, tile.entry.keys, kv_head, block);
        }
    }

    // Tell the other roles, and wait until the mma have released everything: no commit may arrive
    // after the CTA's end.
    __device__ __forceinline__ void end() {
        tasks.write({{}, true});
        stages.drain();
        for (auto& barriers : shared.tiles) barriers.queries_empty.wait(tiles & 1 ^ 1);
    }

private:
    static constexpr int kPages = 4;  // looked up together
};

template <typename Scheduler>
__device__ void load_tiles(Producer& producer, Scheduler schedule) {
    while (!schedule.done()) {
        const Tile tile = schedule.tile();
        schedule.step();
        producer.load(tile);
    }
    producer.end();
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) attention_tensor_memory(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ VTile v,
    const __grid_constant__ OTile o,
    float* lse,
    TilePartial* partials,
    void* schedule,
    const i32* cu_seqlens_q,
    const i32* cu_seqlens_k,
    const i32* page_table,
    int waves,
    const __grid_constant__ Problem problem,
    const __grid_constant__ BatchLimits limits
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Tmem allocation(shared.tmem_address);
    const TmemTiles tmem(allocation);

    const auto load = [&] {
        Producer producer{problem, q, k, v, shared, TaskWriter(shared), shared.blocks.producer()};
        if constexpr (IS_PACKED) {
            const Batch batch{limits, cu_seqlens_q, cu_seqlens_k, page_table};
            load_tiles(producer, packed_schedule(problem, schedule, batch, waves));
        } else {
            load_tiles(producer, padded_schedule(problem, schedule, waves));
        }
    };
    const auto multiply = [&](int helper) {
        if (helper != 0 || !elect()) return;
        set_role("mma");
        TaskReader<true> tasks(shared);
        Multiplier multiplier(shared, tmem);
        for (Tile tile; tasks.take(tile);) {
            const i32 blocks = tile.blocks(problem).count();
            if (blocks > 0) multiplier.multiply(blocks);
        }
    };
    const auto attend = [&](int consumer) {
        TaskReader<> tasks(shared);
        Tile tile;
        if (consumer < kQueryTiles) {
            claim_registers<kSoftmaxRegisters>();
            set_role("softmax", consumer);
            SoftmaxRole softmax(shared, tmem, problem, consumer);
            while (tasks.take(tile)) softmax.compute(tile, lse, partials);
        } else {
            release_registers<kCorrectionRegisters>();
            set_role("correction");
            Correction correction(shared, tmem, o, partials);
            while (tasks.take(tile)) correction.correct(tile, tile.blocks(problem).count());
            correction.drain();
        }
    };
    Roles::run_with_helpers(shared, load, multiply, attend, q, k, v, o);
}
