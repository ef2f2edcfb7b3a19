// O = softmax(scale * Q K^T + mask) V, head by head, and the log-sum-exp of every row.
//
//   QTile, OTile    kGroupRows rows of queries or output, all of the head dimension
//   KTile, VTile    BLOCK_N rows of keys or values
//   CONSUMERS       warpgroups that multiply, 64 rows of queries each
//   BLOCK_N         keys of a block
//   HEAD_DIM        columns of the tiles: the head dimension, and zeros up to a multiple of 32
//   STAGES          buffers in each of the rings of keys and of values
//   QUERY_BUFFERS   1, or 2: the first scores of a tile are then taken before the last sums of the
//                   tile before
//   HEADS_PER_TILE  heads, of one key and value head, whose queries share a tile
//   IS_PACKED       whether sequences lie one after the other, or every entry has its own slice
//   HAS_LEFT        whether positions see no keys too far before them: a window
//   HAS_RIGHT       whether they see none too far behind them: a window, or a causal mask
//   HAS_SOFTCAP     whether scores are cap * tanh(score / cap)
//   HAS_LSE         whether the log-sum-exp is wanted
//   O_OVER_Q        whether the output leaves through the queries' memory, or has its own
//
// `list` is the WorkList of attention_work.cu for packed sequences; else, where a mask makes tiles
// differ, the number of each CTA's tile in each of `rounds`.
//
// Grid: any number of CTAs, of 128 * (1 + CONSUMERS) threads. Rows beyond the arrays are TMA's zero
// fill on loads, so that no NaN of a neighbour gets in, and its clipping on stores.
#include "attention_walk.cuh"
#include "softmax.cuh"

using namespace tmaasync;

using Element = typename QTile::Element;
using OperandQ = WgmmaBuffer<Element, QTile::kSwizzle, Major::kK, kGroupRows, HEAD_DIM>;
using OperandK = WgmmaBuffer<Element, KTile::kSwizzle, Major::kK, BLOCK_N, HEAD_DIM>;
using OperandV = WgmmaBuffer<Element, VTile::kSwizzle, Major::kMN, BLOCK_N, HEAD_DIM>;
using OutputO = WgmmaBuffer<Element, OTile::kSwizzle, Major::kK, kGroupRows, HEAD_DIM>;
using Ring = PipelineState<STAGES>;
// Tasks go round through more places than queries have buffers: a task is read until its output
// leaves, when the queries of the next are in use already.
constexpr int kTasks = 2 * QUERY_BUFFERS;

struct TaskPlace {
    u32 index = 0;

    __device__ __forceinline__ u32 buffer() const { return index % QUERY_BUFFERS; }
    __device__ __forceinline__ u32 phase() const { return index / QUERY_BUFFERS; }
    __device__ __forceinline__ TaskPlace before(u32 steps) const {
        return {(index + kTasks - steps) % kTasks};
    }
    __device__ __forceinline__ void step() { index = (index + 1) % kTasks; }
};

static_assert(
    sizeof(typename QTile::Shared) == sizeof(typename OTile::Shared), "rows of one width"
);

constexpr int kThreads = (1 + CONSUMERS) * kGroupThreads;
constexpr int kProducer = 0;
constexpr int kWarps = kGroupThreads / 32;

// Registers per thread: what a producer keeps and a consumer claims. The CTA has 64 Ki, of which a
// single consumer has enough from the start.
constexpr int kProducerRegisters = CONSUMERS == 3 ? 32 : CONSUMERS == 2 ? 24 : 0;
constexpr int kConsumerRegisters = CONSUMERS == 3 ? 160 : CONSUMERS == 2 ? 240 : 0;

// Where a group's output waits to be stored: memory of its own, or that of its queries.
template <bool kIsOverQ>
struct Staged {
    typename OTile::Shared tiles[CONSUMERS];

    __device__ __forceinline__ auto& of(typename QTile::Shared&, int group) { return tiles[group]; }
};
template <>
struct Staged<true> {
    __device__ __forceinline__ auto& of(typename QTile::Shared& q, int) {
        return reinterpret_cast<typename OTile::Shared&>(q);
    }
};

// What the producer hands over beside the queries.
struct Task {
    Tile tile;
    bool is_last;
};

struct SharedMemory {
    typename QTile::Shared q[QUERY_BUFFERS][CONSUMERS];
    typename KTile::Shared k[STAGES];
    typename VTile::Shared v[STAGES];
    Staged<O_OVER_Q> o;
    Task tasks[kTasks];
    SharedMemBarrier q_full[QUERY_BUFFERS][CONSUMERS];
    SharedMemBarrier q_empty[QUERY_BUFFERS][CONSUMERS];
    SharedMemBarrier k_full[STAGES];
    SharedMemBarrier k_empty[STAGES];
    SharedMemBarrier v_full[STAGES];
    SharedMemBarrier v_empty[STAGES];
};

extern "C" __device__ const int attention_shared_bytes = sizeof(SharedMemory);

// What a thread holds of its group's rows.
using Scores = float[BLOCK_N / 2];
using Weights = u32[BLOCK_N / 16][4];
using Sums = float[HEAD_DIM / 2];

__device__ void open_rings(SharedMemory& shared) {
    for (int buffer = 0; buffer < QUERY_BUFFERS; ++buffer) {
        for (int group = 0; group < CONSUMERS; ++group) {
            shared.q_full[buffer][group].init(1);
            shared.q_empty[buffer][group].init(kWarps);
        }
    }
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.k_full[stage].init(1);
        shared.k_empty[stage].init(CONSUMERS * kWarps);
        shared.v_full[stage].init(1);
        shared.v_empty[stage].init(CONSUMERS * kWarps);
    }
    fence_barrier_init();
}

// --- loads ---------------------------------------------------------------------------------------

template <typename Rows>
__device__ __forceinline__ void load_rows(
    const Rows& rows,
    typename Rows::Shared& shared,
    SharedMemBarrier& full,
    i32 entry,
    const RaggedSequence& sequence,
    i32 head,
    i32 row
) {
    full.expect_bytes(Rows::kBytes);
    if constexpr (IS_PACKED) {
        rows.async_copy(shared, full, sequence, {0, head, row});
    } else {
        rows.async_copy(shared, full, {0, head, row, entry});
    }
}

template <typename Rows>
__device__ __forceinline__ void store_rows(
    const Rows& rows, const typename Rows::Shared& shared, const Entry& entry, i32 head, i32 row
) {
    if constexpr (IS_PACKED) {
        rows.async_store(shared, entry.queries, {0, head, row});
    } else {
        rows.async_store(shared, {0, head, row, entry.index});
    }
}

struct Loads {
    SharedMemory& shared;
    const QTile& q;
    const KTile& k;
    const VTile& v;
    Ring k_place = Ring::for_producer();
    Ring v_place = Ring::for_producer();
    TaskPlace place;

    // Hands a tile over, as soon as the one that had its buffer is done with.
    __device__ __forceinline__ void load_q(const Tile& tile) {
        hand_over({tile, false});
        for (int group = 0; group < CONSUMERS; ++group) {
            load_rows(
                q, shared.q[place.buffer()][group], shared.q_full[place.buffer()][group],
                tile.entry.index, tile.entry.queries, tile.head,
                tile.position + group * kGroupPositions
            );
        }
        place.step();
    }

    __device__ __forceinline__ void load_k(const Tile& tile, i32 kv_head, i32 block) {
        load_block(k, k_place, shared.k, shared.k_full, shared.k_empty, tile.entry, kv_head, block);
    }

    __device__ __forceinline__ void load_v(const Tile& tile, i32 kv_head, i32 block) {
        load_block(v, v_place, shared.v, shared.v_full, shared.v_empty, tile.entry, kv_head, block);
    }

    __device__ __forceinline__ void end() {
        hand_over({{}, true});
        for (auto& full : shared.q_full[place.buffer()]) full.arrive();
    }

private:
    // Every group is done with what was here before.
    __device__ __forceinline__ void hand_over(const Task& task) {
        for (auto& empty : shared.q_empty[place.buffer()]) empty.wait(place.phase() ^ 1);
        shared.tasks[place.index] = task;
    }

    template <typename Rows>
    __device__ __forceinline__ static void load_block(
        const Rows& rows,
        Ring& place,
        typename Rows::Shared (&stages)[STAGES],
        SharedMemBarrier (&full)[STAGES],
        SharedMemBarrier (&empty)[STAGES],
        const Entry& entry,
        i32 kv_head,
        i32 block
    ) {
        empty[place.index].wait(place.phase);
        load_rows(
            rows, stages[place.index], full[place.index], entry.index, entry.keys, kv_head,
            block * BLOCK_N
        );
        place.step();
    }
};

// In the order in which the consumers take them: the keys of a block, then the values of the one
// before.
__device__ __forceinline__ void load_tile(Loads& loads, const Problem& problem, const Tile& tile) {
    const auto blocks = tile.blocks(problem);
    const i32 kv_head = tile.head / problem.heads_per_kv_head;
    if (blocks.count() > 0) loads.load_k(tile, kv_head, blocks.end - 1);
    loads.load_q(tile);
    if (blocks.count() == 0) return;
    for (int block = blocks.end - 2; block >= blocks.first; --block) {
        loads.load_k(tile, kv_head, block);
        loads.load_v(tile, kv_head, block + 1);
    }
    loads.load_v(tile, kv_head, blocks.first);
}

template <typename Walk>
__device__ void load_tiles(Loads loads, const Problem& problem, const Walk& walk) {
    i32 round = 0;
    for (i32 index = walk.index(0); index >= 0; index = walk.index(++round)) {
        load_tile(loads, problem, walk.tile(index));
    }
    loads.end();
}

// --- products ------------------------------------------------------------------------------------

// Groups issue their products in turn, so that one has the tensor cores while the others weigh.
constexpr u32 kFirstTurn = 1 + CONSUMERS;

__device__ __forceinline__ void take_turn(int group) {
    if constexpr (CONSUMERS > 1) NamedBarrier<2 * kGroupThreads>{kFirstTurn + group}.sync();
}

__device__ __forceinline__ void pass_turn(int group) {
    const u32 next = group == CONSUMERS - 1 ? 0 : group + 1;
    if constexpr (CONSUMERS > 1) NamedBarrier<2 * kGroupThreads>{kFirstTurn + next}.arrive();
}

// The warp has read what the barrier guards.
__device__ __forceinline__ void release(SharedMemBarrier& empty) {
    if (lane_index() == 0) empty.arrive();
}

struct Consumer {
    SharedMemory& shared;
    const Problem& problem;
    int group;
    Ring k_place = Ring::for_consumer();
    Ring v_place = Ring::for_consumer();
    TaskPlace place;  // of the task that is taken next

    // Waits for a task, and for its queries.
    __device__ __forceinline__ void take_task() {
        shared.q_full[place.buffer()][group].wait(place.phase());
        // One lane gives the queries back for its warp: none may be waiting for them still.
        __syncwarp();
        place.step();
    }

    // The task that was taken last, or before that.
    __device__ __forceinline__ const Task& task(u32 before = 0) const {
        return shared.tasks[place.before(1 + before).index];
    }

    // What the group walks for it.
    __device__ __forceinline__ KeyBlocks blocks() const {
        return task().is_last ? KeyBlocks{} : task().tile.blocks(problem, group);
    }

    // All scores of the tile are taken.
    __device__ __forceinline__ void release_queries() {
        if constexpr (!O_OVER_Q) release(shared.q_empty[place.before(1).buffer()][group]);
    }

    // scores = Q K^T, as one group of instructions.
    __device__ __forceinline__ void issue_scores(Scores& scores) {
        const u64 q = OperandQ::descriptor(shared.q[place.before(1).buffer()][group], 0);
        const u64 k = OperandK::descriptor(shared.k[k_place.index], 0);
        shared.k_full[k_place.index].wait(k_place.phase);
        wgmma_fence_operands(scores);
        ptx::wgmma_fence();
        wgmma_tile<OperandQ, OperandK>(scores, q, k, false);
        ptx::wgmma_commit_group();
    }

    // sums += weights V, as one group of instructions.
    __device__ __forceinline__ void issue_sums(Sums& sums, Weights& weights) {
        const u64 v = OperandV::descriptor(shared.v[v_place.index], 0);
        shared.v_full[v_place.index].wait(v_place.phase);
        wgmma_fence_operands(sums);
        wgmma_fence_operands(weights);
        ptx::wgmma_fence();
        wgmma_tile_rs<OperandV>(sums, weights, v, true);
        ptx::wgmma_commit_group();
    }

    // Waits until at most kPending of the groups run, the scores not among them.
    template <int kPending>
    __device__ __forceinline__ void take_scores(Scores& scores) {
        ptx::wgmma_wait_group<kPending>();
        wgmma_fence_operands(scores);
        release(shared.k_empty[k_place.index]);
        k_place.step();
    }

    __device__ __forceinline__ void take_sums(Sums& sums, Weights& weights) {
        ptx::wgmma_wait_group<0>();
        wgmma_fence_operands(sums);
        wgmma_fence_operands(weights);
        release(shared.v_empty[v_place.index]);
        v_place.step();
    }
};

// Row of the tile of the first of a thread's two rows; the other is eight below.
__device__ __forceinline__ int row_of_thread(int group) {
    return group * kGroupRows + accumulator_row(thread_in_warpgroup(), 0);
}

// What the thread's rows see of a block of keys.
__device__ __forceinline__ Visible
visible_in(const Problem& problem, const Tile& tile, int group, int block) {
    const int first_column = block * BLOCK_N + accumulator_column(thread_in_warpgroup(), 0);
    Visible visible;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(group) + 8 * half;
        const int own = tile.position + row / HEADS_PER_TILE + tile.shift(problem);
        int end = tile.entry.keys.length;
        if constexpr (HAS_RIGHT) end = min(end, own + problem.right + 1);
        visible.end[half] = end - first_column;
        visible.first[half] = own - problem.left - first_column;
    }
    return visible;
}

template <bool kMayBePartial>
__device__ __forceinline__ void weigh_scores(
    const Consumer& consumer,
    const Tile& tile,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    float (&rescale)[2]
) {
    if constexpr (HAS_SOFTCAP) cap_scores(scores, consumer.problem.scale);
    if constexpr (kMayBePartial) {
        if (!blocks.is_whole(block)) {
            mask_scores(scores, visible_in(consumer.problem, tile, consumer.group, block));
        }
    }
    softmax.weigh<kMayBePartial>(scores, rescale);
}

__device__ __forceinline__ void scale_rows(Sums& sums, const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) sums[i] *= by[i / 2 % 2];
}

// One block of keys: its scores are multiplied while the block before is summed up, and weighed
// while that goes on.
template <bool kMayBePartial>
__device__ __forceinline__ void step(
    Consumer& consumer,
    const Tile& tile,
    const KeyBlocks& blocks,
    int block,
    Softmax& softmax,
    Scores& scores,
    Weights& weights,
    Sums& sums
) {
    take_turn(consumer.group);
    consumer.issue_scores(scores);
    consumer.issue_sums(sums, weights);
    pass_turn(consumer.group);
    consumer.take_scores<1>(scores);
    float rescale[2];
    weigh_scores<kMayBePartial>(consumer, tile, blocks, block, softmax, scores, rescale);
    consumer.take_sums(sums, weights);
    accumulators_to_a<Element>(weights, scores);
    if (changes(rescale)) scale_rows(sums, rescale);
}

// The first block of a tile, where nothing else runs.
__device__ __forceinline__ void begin(
    Consumer& consumer, const KeyBlocks& blocks, Softmax& softmax, Scores& scores, Weights& weights
) {
    float rescale[2];
    consumer.issue_scores(scores);
    consumer.take_scores<0>(scores);
    weigh_scores<true>(
        consumer, consumer.task().tile, blocks, blocks.end - 1, softmax, scores, rescale
    );
    accumulators_to_a<Element>(weights, scores);
}

// All blocks of a tile but the first. The weights of the last are left to be summed.
__device__ __forceinline__ void go_on(
    Consumer& consumer,
    const KeyBlocks& blocks,
    Softmax& softmax,
    Scores& scores,
    Weights& weights,
    Sums& sums
) {
    int block = blocks.end - 2;
    for (; block >= max(blocks.whole_end, blocks.first); --block) {
        step<true>(consumer, consumer.task().tile, blocks, block, softmax, scores, weights, sums);
    }
    for (; block >= blocks.whole_first; --block) {
        step<false>(consumer, consumer.task().tile, blocks, block, softmax, scores, weights, sums);
    }
    for (; block >= blocks.first; --block) {
        step<true>(consumer, consumer.task().tile, blocks, block, softmax, scores, weights, sums);
    }
    consumer.release_queries();
}

// The last sums of a tile, while the first block of the next is multiplied and weighed.
__device__ __forceinline__ void change_over(
    Consumer& consumer,
    const KeyBlocks& blocks,
    Softmax& softmax,
    Scores& scores,
    Weights& weights,
    Sums& sums
) {
    float rescale[2];
    take_turn(consumer.group);
    consumer.issue_scores(scores);
    consumer.issue_sums(sums, weights);
    pass_turn(consumer.group);
    consumer.take_scores<1>(scores);
    weigh_scores<true>(
        consumer, consumer.task().tile, blocks, blocks.end - 1, softmax, scores, rescale
    );
    consumer.take_sums(sums, weights);
    accumulators_to_a<Element>(weights, scores);
}

// --- output --------------------------------------------------------------------------------------

__device__ __forceinline__ void write_lse(
    const Problem& problem, const Tile& tile, int group, const float (&values)[2], float* lse
) {
    if (lane_index() % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(group) + 8 * half;
        const int position = tile.position + row / HEADS_PER_TILE;
        const int head = tile.head + row % HEADS_PER_TILE;
        if (position >= tile.entry.queries.length) continue;
        const i64 line = static_cast<i64>(IS_PACKED ? 0 : tile.entry.index) * problem.heads + head;
        lse[line * problem.queries + tile.entry.queries.start + position] = values[half];
    }
}

__device__ __forceinline__ void store_output(
    Consumer& consumer, const OTile& o, const Tile& tile, Sums& sums, const float (&shares)[2]
) {
    const int group = consumer.group;
    const NamedBarrier<kGroupThreads> everyone{1u + group};
    const bool leads = threadIdx.x % kGroupThreads == 0;
    auto& staged = consumer.shared.o.of(consumer.shared.q[0][group], group);
    // The store of the tile before has read this memory.
    if (leads) wait_group_read<0>();
    everyone.sync();
    scale_rows(sums, shares);
    store_accumulators<OutputO, HEAD_DIM>(staged, sums);
    fence_async_view_proxy();
    everyone.sync();
    if (leads) {
        const int position = tile.position + group * kGroupPositions;
        store_rows(o, staged, tile.entry, tile.head, position);
        commit_group();
        if constexpr (O_OVER_Q) {
            wait_group_read<0>();
            consumer.shared.q_empty[0][group].arrive(kWarps);
        }
    }
    // Together again: the assembler keeps what a warp has in common, such as places in rings, in
    // registers of the warp only where it knows that.
    __syncwarp();
}

// What the sums of the thread's rows have to be multiplied by; their log-sum-exp is written.
struct Shares {
    float of[2];

    __device__ __forceinline__ Shares(
        const Consumer& consumer, const Tile& tile, const Softmax& softmax, float* lse
    ) {
        float values[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = softmax.total(half);
            of[half] = total == 0 ? 0 : 1 / total;
            values[half] = softmax.log_sum_exp(half, total);
        }
        if constexpr (HAS_LSE) write_lse(consumer.problem, tile, consumer.group, values, lse);
    }
};

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) sums[i] = 0;
}

// From the task on that was taken last, whose tile sees keys, as many as do: between them the
// tensor cores are never without work. The task that ends them is taken.
__device__ __forceinline__ void attend_run(
    Consumer& consumer, KeyBlocks blocks, const OTile& o, float* lse
) {
    Softmax softmax{consumer.problem.scale_log2};
    Scores scores;
    Weights weights;
    Sums sums;
    clear(sums);
    begin(consumer, blocks, softmax, scores, weights);
    while (true) {
        go_on(consumer, blocks, softmax, scores, weights, sums);
        const Shares shares(consumer, consumer.task().tile, softmax, lse);
        if constexpr (QUERY_BUFFERS > 1) {
            consumer.take_task();
            blocks = consumer.blocks();
            if (blocks.count() > 0) {
                softmax = Softmax{consumer.problem.scale_log2};
                change_over(consumer, blocks, softmax, scores, weights, sums);
                store_output(consumer, o, consumer.task(1).tile, sums, shares.of);
                clear(sums);
                continue;
            }
        }
        consumer.issue_sums(sums, weights);
        consumer.take_sums(sums, weights);
        store_output(consumer, o, consumer.task(QUERY_BUFFERS - 1).tile, sums, shares.of);
        if constexpr (QUERY_BUFFERS == 1) consumer.take_task();
        return;
    }
}

// A tile that sees no keys.
__device__ __forceinline__ void attend_to_nothing(Consumer& consumer, const OTile& o, float* lse) {
    const Tile& tile = consumer.task().tile;
    consumer.release_queries();
    Sums sums;
    clear(sums);
    const Shares none(consumer, tile, Softmax{consumer.problem.scale_log2}, lse);
    store_output(consumer, o, tile, sums, none.of);
    consumer.take_task();
}

__device__ void attend_tiles(Consumer consumer, const OTile& o, float* lse) {
    // The first group's first turn.
    if (consumer.group == CONSUMERS - 1) pass_turn(consumer.group);
    consumer.take_task();
    while (!consumer.task().is_last) {
        const auto blocks = consumer.blocks();
        if (blocks.count() > 0) {
            attend_run(consumer, blocks, o, lse);
        } else {
            attend_to_nothing(consumer, o, lse);
        }
    }
    if (threadIdx.x % kGroupThreads == 0) wait_group_read<0>();
    // Whoever passed the last turn on has somebody to take it.
    if (consumer.group == 0) take_turn(0);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) attention(
    const __grid_constant__ QTile q,
    const __grid_constant__ KTile k,
    const __grid_constant__ VTile v,
    const __grid_constant__ OTile o,
    float* lse,
    const void* list,
    int rounds,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int group = warpgroup_index();

    launch_dependent_grids();
    if (threadIdx.x == 0) {
        q.prefetch_descriptor();
        k.prefetch_descriptor();
        v.prefetch_descriptor();
        o.prefetch_descriptor();
        open_rings(shared);
    }
    __syncthreads();

    if (group == kProducer) {
        release_registers<kProducerRegisters>();
        if (warp_index() == 0 && elect()) {
            wait_for_previous_grids();
            if constexpr (IS_PACKED) {
                load_tiles(
                    {shared, q, k, v}, problem,
                    PackedWalk(problem, *static_cast<const WorkList*>(list))
                );
            } else {
                load_tiles(
                    {shared, q, k, v}, problem,
                    PaddedWalk(problem, static_cast<const i32*>(list), rounds)
                );
            }
        }
    } else {
        claim_registers<kConsumerRegisters>();
        attend_tiles({shared, problem, group - 1}, o, lse);
    }
}
