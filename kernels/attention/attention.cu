// O = softmax(scale * Q K^T + mask) V, head by head, and the log-sum-exp of every row.
//
//   QTile, OTile    kGroupRows rows of queries or output, all of the head dimension
//   KTile, VTile    BLOCK_N rows of keys or values; of 8-bit values, which attention_values.cu has
//                   transposed, as many columns
//   CONSUMERS       warpgroups that multiply, 64 rows of queries each
//   BLOCK_N         keys of a block
//   HEAD_DIM        columns of the tiles: the head dimension, and zeros up to lines of 64 bytes
//   STAGES          buffers in each of the rings of keys and of values
//   QUERY_BUFFERS   1, or 2: queries come while the tile before is worked on; of 16-bit elements
//                   the first scores of a tile are then taken before the last sums of the one
//                   before
//   HEADS_PER_TILE  heads, of one key and value head, whose queries share a tile
//   CLUSTER         CTAs that share loads of keys and values: 1, or 2 where nothing is packed. Each
//                   loads half of the boxes and sends them to both
//   IS_PACKED       whether sequences lie one after the other, or every entry has its own slice
//   PAGE_SIZE       rows of a page, where keys and values of packed sequences lie in pages; else 0
//   HAS_LEFT        whether positions see no keys too far before them: a window
//   HAS_RIGHT       whether they see none too far behind them: a window, or a causal mask
//   HAS_SOFTCAP     whether scores are cap * tanh(score / cap)
//   HAS_LSE         whether the log-sum-exp is wanted
//   O_OVER_Q        whether the output leaves through the queries' memory, or has its own
//   SPLITS_KEYS     whether spans of tiles may be worked on in pieces, each of them a part of the
//                   keys, by several clusters
//
// `list` is the WorkList of attention_work.cu for packed sequences; else, where a mask makes tiles
// differ, the number of each cluster's span of tiles in each of `rounds`, or, where keys are split,
// its PaddedWalk::Piece. Of packed sequences whose keys are split, `rounds` is in how many parts
// those of every tile are. `parts` is where the sums of such pieces go, for attention_combine.cu;
// where elements have 8 bits, the Factors of every head of keys of every entry lie before them.
//
// Grid: any number of clusters of CLUSTER CTAs, of 128 * (1 + CONSUMERS) threads. Rows beyond the
// arrays are TMA's zero fill on loads, so that no NaN of a neighbour gets in, and its clipping on
// stores.
#include "split_kv.cuh"

using namespace tmaasync;

// Registers per thread: what a producer keeps and a consumer claims. The CTA has 64 Ki, of which a
// single consumer has enough from the start. A producer that sends to two CTAs holds more.
constexpr bool kSends = CLUSTER > 1;
constexpr int kProducerRegisters = CONSUMERS == 3 ? 32 : CONSUMERS == 2 ? (kSends ? 40 : 24) : 0;
constexpr int kConsumerRegisters = CONSUMERS == 3 ? 160 : CONSUMERS == 2 ? (kSends ? 232 : 240) : 0;

extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

// Where the group's sums of a part of the keys go.
__device__ __forceinline__ GroupPart& part_of(
    const Consumer& consumer, const Tile& tile, Part* parts
) {
    return parts[tile.place() * CLUSTER + rank_in_span()].groups[consumer.group];
}

__device__ __forceinline__ void store_output(
    Consumer& consumer,
    const OTile& o,
    const Tile& tile,
    Sums& sums,
    const float (&shares)[2],
    Part* parts
) {
    if constexpr (SPLITS_KEYS) {
        if (tile.is_part()) {
            if constexpr (kIsFp8) scale_rows(sums, shares);
            part_of(consumer, tile, parts).write(sums, tile, consumer.group);
            if constexpr (O_OVER_Q) release(consumer.shared.q_empty[0][consumer.group]);
            return;
        }
    }
    const bool leads = threadIdx.x % kGroupThreads == 0;
    auto& staged = consumer.shared.o.of(consumer.shared.q[0][consumer.group], consumer.group);
    // The store of the tile before has read this memory.
    if (leads) wait_group_read<0>();
    store_group(o, staged, tile, consumer.group, sums, shares);
    if constexpr (O_OVER_Q) {
        if (leads) {
            wait_group_read<0>();
            consumer.shared.q_empty[0][consumer.group].arrive(kWarps);
        }
    }
    // Together again: the assembler keeps what a warp has in common, such as places in rings, in
    // registers of the warp only where it knows that.
    __syncwarp();
}

// What the sums of the thread's rows have to be multiplied by; their log-sum-exp is written. The
// sums of a part stay as they are, but for the values' factor, and what they are relative to is
// written.
struct Shares {
    float of[2];

    __device__ __forceinline__ Shares(
        const Consumer& consumer, const Tile& tile, const Softmax& softmax, float* lse, Part* parts
    ) {
        const float factor = consumer.task().factors().values;
        if constexpr (SPLITS_KEYS) {
            if (tile.is_part()) {
                write_scale(part_of(consumer, tile, parts), softmax);
                if constexpr (kIsFp8) of[0] = of[1] = factor;
                return;
            }
        }
        float values[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = softmax.total(half);
            of[half] = share_of(total) * factor;
            values[half] = log_sum_exp(softmax.relative_to(half), total);
        }
        if constexpr (HAS_LSE) write_lse(consumer.problem, tile, consumer.group, values, lse);
    }

private:
    __device__ __forceinline__ static void write_scale(GroupPart& part, const Softmax& softmax) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_of_thread(0) + 8 * half;
            const float total = softmax.total(half);
            if (lane_index() % 4 != 0) continue;
            part.most[row] = total == 0 ? kNothing : softmax.relative_to(half);
            part.totals[row] = total;
        }
    }
};

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) sums[i] = 0;
}

// From the task on that was taken last, whose tile sees keys, as many as do and have none to skip:
// between them the tensor cores are never without work. The task that ends them is taken.
__device__ __forceinline__ void attend_run(
    Consumer& consumer, KeyBlocks blocks, const OTile& o, float* lse, Part* parts
) {
    Softmax softmax = consumer.softmax();
    Scores scores;
    Weights weights;
    Sums sums;
    clear(sums);
    begin(consumer, blocks, softmax, scores, weights);
    while (true) {
        go_on(consumer, blocks, softmax, scores, weights, sums);
        const Shares shares(consumer, consumer.task().tile, softmax, lse, parts);
        if constexpr (QUERY_BUFFERS > 1) consumer.take_task();
        if constexpr (kTilesOverlap) {
            blocks = consumer.blocks();
            if (consumer.comes_next(blocks)) {
                softmax = consumer.softmax();
                change_over(consumer, blocks, softmax, scores, weights, sums);
                store_output(consumer, o, consumer.task(1).tile, sums, shares.of, parts);
                clear(sums);
                continue;
            }
        }
        consumer.add(sums, weights);
        store_output(consumer, o, consumer.task(QUERY_BUFFERS - 1).tile, sums, shares.of, parts);
        if constexpr (QUERY_BUFFERS == 1) consumer.take_task();
        return;
    }
}

// A tile that sees no keys.
__device__ __forceinline__ void attend_to_nothing(
    Consumer& consumer, const OTile& o, float* lse, Part* parts
) {
    const Tile& tile = consumer.task().tile;
    consumer.release_queries();
    Sums sums;
    clear(sums);
    const Shares none(consumer, tile, consumer.softmax(), lse, parts);
    store_output(consumer, o, tile, sums, none.of, parts);
    consumer.take_task();
}

__device__ void attend_tiles(Consumer consumer, const OTile& o, float* lse, Part* parts) {
    // The first group's first turn.
    if (consumer.group == CONSUMERS - 1) pass_turn(consumer.group);
    consumer.take_task();
    while (!consumer.task().is_last) {
        const auto blocks = consumer.blocks();
        if constexpr (kSkipsBlocks) consumer.skip_blocks(consumer.blocks_to_skip(blocks));
        if (blocks.count() > 0) {
            attend_run(consumer, blocks, o, lse, parts);
        } else {
            attend_to_nothing(consumer, o, lse, parts);
        }
    }
    if (threadIdx.x % kGroupThreads == 0) wait_group_read<0>();
    // Whoever passed the last turn on has somebody to take it.
    if (consumer.group == 0) Order::wait(0);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) attention(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ VTile v,
    const __grid_constant__ OTile o,
    float* lse,
    Part* parts,
    void* list,
    int rounds,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int group = warpgroup_index();
    const Factors* factors = nullptr;
    if constexpr (kIsFp8) {
        factors = reinterpret_cast<const Factors*>(parts);
        parts = parts_behind(factors, problem);
    }

    launch_dependent_grids();
    if (threadIdx.x == 0) {
        q.prefetch_descriptor();
        k.prefetch_descriptor();
        v.prefetch_descriptor();
        o.prefetch_descriptor();
        open_rings(shared);
    }
    if constexpr (CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }

    if (group == kProducer) {
        release_registers<kProducerRegisters>();
        if (warp_index() == 0 && elect()) {
            wait_for_previous_grids();
            if constexpr (IS_PACKED) {
                auto& tiles = *static_cast<WorkList*>(list);
                load_tiles({shared, q, k, v, factors}, problem, PackedWalk(problem, tiles, rounds));
            } else {
                load_tiles({shared, q, k, v, factors}, problem, PaddedWalk(problem, list, rounds));
            }
        }
    } else {
        claim_registers<kConsumerRegisters>();
        attend_tiles({shared, problem, group - 1}, o, lse, parts);
    }
    // No CTA leaves while its peer may still write into its shared memory or arrive on its
    // barriers.
    if constexpr (CLUSTER > 1) cluster_sync();
}
