// Attention: O = softmax(scale * Q K^T + mask) V, head by head, and the log-sum-exp of every row.
// A warp-specialised persistent kernel after FlashAttention-3 (Shah et al. 2024): ping-pong
// consumers, MMAs that overlap the softmax, and the lazy rescaling of FlashAttention-4. With
// split-KV (flash-decoding) attention_combine.cu follows.
//
//   QTile, OTile    64 rows of queries or output, all of the head dimension
//   KTile, VTile    BLOCK_N rows of keys or values; of FP8 values, which attention_values.cu has
//                   transposed, as many columns
//   CONSUMERS       consumer warpgroups, of 64 rows of queries each
//   BLOCK_N         keys of a block
//   HEAD_DIM        columns of the tiles: the head dimension, and zeros up to lines of 64 bytes
//   STAGES          stages of each pipeline, of keys and of values
//   QUERY_BUFFERS   1, or 2: queries are loaded during the tile before; of 16-bit elements the
//                   first S of a tile then overlaps the last P V of the tile before
//   HEADS_PER_TILE  query heads of one KV head that share a tile (GQA packing)
//   CLUSTER         CTAs that share loads of keys and values: 1, or 2 where nothing is packed. Each
//                   loads half of the boxes and multicasts them to both
//   IS_PACKED       whether sequences lie one after the other (varlen); else every entry has its
//                   own slice
//   PAGE_SIZE       rows of a page of the paged KV cache of packed sequences; 0 without pages
//   HAS_LEFT        whether positions do not see keys too far before them: a sliding window
//   HAS_RIGHT       whether they do not see keys too far after them: a window, or a causal mask
//   HAS_SOFTCAP     whether scores are cap * tanh(score / cap)
//   HAS_LSE         whether the log-sum-exp is written
//   O_OVER_Q        whether the output is staged in the queries' memory; else in its own
//   SPLITS_KEYS     split-KV: whether tiles may be worked on in splits of their keys, by several
//                   clusters
//
// `schedule` is the WorkList of attention_work.cu for packed sequences. Else, where a mask makes
// tiles differ, it is the number of each cluster's span in each of `waves`, or with split-KV the
// ScheduledSpan. For packed sequences with split-KV, `waves` is the number of splits of every tile.
// `partials` is the workspace for split tiles; with FP8 the Descale of every KV head of every entry
// lies before them.
//
// Grid: any number of clusters of CLUSTER CTAs, of 128 * (1 + CONSUMERS) threads. At the edges of
// the arrays TMA fills loads with zeros, so that no NaN of a neighbour gets in, and clips stores.
#include "abi.cuh"
#include "epilogue.cuh"
#include "mainloop.cuh"
#include "pipeline.cuh"
#include "producer.cuh"
#include "scheduler.cuh"
#include "split_kv.cuh"

using namespace tmaasync;

// Registers per thread that a producer keeps and a consumer claims. The CTA has 64 Ki, of which a
// single consumer has enough from the start. A producer that multicasts needs more.
constexpr bool kMulticasts = CLUSTER > 1;
constexpr int kProducerRegisters = CONSUMERS == 3   ? 32
                                   : CONSUMERS == 2 ? (kMulticasts ? 40 : 24)
                                                    : 0;
constexpr int kConsumerRegisters = CONSUMERS == 3   ? 160
                                   : CONSUMERS == 2 ? (kMulticasts ? 232 : 240)
                                                    : 0;

extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

// Where the consumer's partial output of a split tile goes.
__device__ __forceinline__ ConsumerPartial& partial_of(
    const Consumer& consumer, const Tile& tile, TilePartial* partials
) {
    return partials[tile.slot() * CLUSTER + rank_in_span()].consumers[consumer.index];
}

__device__ __forceinline__ void store_output(
    Consumer& consumer,
    const OTile& o,
    const Tile& tile,
    Accumulators& accumulators,
    const float (&normalizers)[2],
    TilePartial* partials
) {
    if constexpr (SPLITS_KEYS) {
        if (tile.is_split()) {
            if constexpr (kIsFp8) scale_rows(accumulators, normalizers);
            auto& partial = partial_of(consumer, tile, partials);
            write_partial(partial, accumulators, tile, consumer.index);
            if constexpr (O_OVER_Q) release(consumer.shared.q_empty[0][consumer.index]);
            return;
        }
    }
    const bool leads = threadIdx.x % kWarpgroupThreads == 0;
    auto& staged = consumer.shared.o.at(consumer.shared.q[0][consumer.index], consumer.index);
    // The store of the tile before has read this memory.
    if (leads) wait_group_read<0>();
    store_consumer(o, staged, tile, consumer.index, accumulators, normalizers);
    if constexpr (O_OVER_Q) {
        if (leads) {
            wait_group_read<0>();
            consumer.shared.q_empty[0][consumer.index].arrive(kWarps);
        }
    }
    // Reconverge: the assembler keeps what a warp has in common, such as pipeline states, in
    // uniform registers only where it knows that the warp has converged.
    __syncwarp();
}

// The normalizers of the thread's rows, by which the output is multiplied; writes the log-sum-exp.
// Of a split tile they are the values' descale factor alone, and row_max and row_sum are written.
struct Normalizers {
    float rows[2];

    __device__ __forceinline__ Normalizers(
        const Consumer& consumer,
        const Tile& tile,
        const Softmax& softmax,
        float* lse,
        TilePartial* partials
    ) {
        const float factor = consumer.task().descale().values;
        if constexpr (SPLITS_KEYS) {
            if (tile.is_split()) {
                write_partial_softmax(partial_of(consumer, tile, partials), softmax);
                if constexpr (kIsFp8) rows[0] = rows[1] = factor;
                return;
            }
        }
        float values[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float row_sum = softmax.row_sum(half);
            rows[half] = inverse_row_sum(row_sum) * factor;
            values[half] = log_sum_exp(softmax.scaled_max(half), row_sum);
        }
        if constexpr (HAS_LSE) write_lse(consumer.problem, tile, consumer.index, values, lse);
    }
};

__device__ __forceinline__ void clear(Accumulators& accumulators) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) accumulators[i] = 0;
}

// Works on the task taken last, whose tile sees keys, and on all that follow it as long as they see
// keys and have no blocks to skip: the tensor cores are busy from one tile to the next. Then takes
// the task after those.
__device__ __forceinline__ void attend_run(
    Consumer& consumer, KeyBlocks blocks, const OTile& o, float* lse, TilePartial* partials
) {
    Softmax softmax = consumer.softmax();
    Scores scores;
    Probabilities probabilities;
    Accumulators accumulators;
    clear(accumulators);
    start_tile(consumer, blocks, softmax, scores, probabilities);
    while (true) {
        continue_tile(consumer, blocks, softmax, scores, probabilities, accumulators);
        const Normalizers normalizers(consumer, consumer.task().tile, softmax, lse, partials);
        if constexpr (QUERY_BUFFERS > 1) consumer.take_task();
        if constexpr (kTilesOverlap) {
            blocks = consumer.blocks();
            if (consumer.is_next_in_pipeline(blocks)) {
                softmax = consumer.softmax();
                overlap_tiles(consumer, blocks, softmax, scores, probabilities, accumulators);
                const Tile& tile = consumer.task(1).tile;
                store_output(consumer, o, tile, accumulators, normalizers.rows, partials);
                clear(accumulators);
                continue;
            }
        }
        consumer.accumulate_pv(accumulators, probabilities);
        const Tile& tile = consumer.task(QUERY_BUFFERS - 1).tile;
        store_output(consumer, o, tile, accumulators, normalizers.rows, partials);
        if constexpr (QUERY_BUFFERS == 1) consumer.take_task();
        return;
    }
}

// Works on a tile that sees no keys.
__device__ __forceinline__ void attend_to_nothing(
    Consumer& consumer, const OTile& o, float* lse, TilePartial* partials
) {
    const Tile& tile = consumer.task().tile;
    consumer.release_queries();
    Accumulators accumulators;
    clear(accumulators);
    const Normalizers normalizers(consumer, tile, consumer.softmax(), lse, partials);
    store_output(consumer, o, tile, accumulators, normalizers.rows, partials);
    consumer.take_task();
}

__device__ void attend_tiles(Consumer consumer, const OTile& o, float* lse, TilePartial* partials) {
    // The last consumer lets the first begin.
    if (consumer.index == CONSUMERS - 1) release_next_consumer(consumer.index);
    consumer.take_task();
    while (!consumer.task().is_last) {
        const auto blocks = consumer.blocks();
        if constexpr (kSkipsBlocks) consumer.skip_blocks(consumer.blocks_to_skip(blocks));
        if (blocks.count() > 0) {
            attend_run(consumer, blocks, o, lse, partials);
        } else {
            attend_to_nothing(consumer, o, lse, partials);
        }
    }
    if (threadIdx.x % kWarpgroupThreads == 0) wait_group_read<0>();
    // Pairs with the last release: the named barrier is complete at the end.
    if (consumer.index == 0) Order::wait(0);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) attention(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ VTile v,
    const __grid_constant__ OTile o,
    float* lse,
    TilePartial* partials,
    void* schedule,
    int waves,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int warpgroup = warpgroup_index();
    const Descale* descales = nullptr;
    if constexpr (kIsFp8) {
        descales = reinterpret_cast<const Descale*>(partials);
        partials = workspace_after<TilePartial>(descales, problem);
    }

    launch_dependent_grids();
    if (threadIdx.x == 0) {
        q.prefetch_descriptor();
        k.prefetch_descriptor();
        v.prefetch_descriptor();
        o.prefetch_descriptor();
        init_barriers(shared);
    }
    if constexpr (CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }

    if (warpgroup == kProducer) {
        release_registers<kProducerRegisters>();
        if (warp_index() == 0 && elect()) {
            wait_for_previous_grids();
            const Producer producer{shared, q, k, v, descales};
            if constexpr (IS_PACKED) {
                auto& list = *static_cast<WorkList*>(schedule);
                load_tiles(producer, problem, DynamicScheduler(problem, list, waves));
            } else {
                load_tiles(producer, problem, StaticScheduler(problem, schedule, waves));
            }
        }
    } else {
        claim_registers<kConsumerRegisters>();
        attend_tiles({shared, problem, warpgroup - 1}, o, lse, partials);
    }
    // No CTA leaves while its peer may still write into its shared memory or arrive on its
    // barriers.
    if constexpr (CLUSTER > 1) cluster_sync();
}
