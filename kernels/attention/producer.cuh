#pragma once

// Attention's shared memory, and the producer that fills it. The constants are explained in
// attention.cu.
#include "abi.cuh"
#include "scheduler.cuh"

namespace tmaasync {

using Element = typename QTile::Element;
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

// Queries, keys and values of 8 bits: the values come transposed, from attention_values.cu, and
// every head of keys has factors.
constexpr bool kIsFp8 = sizeof(Element) == 1;

static_assert(
    !O_OVER_Q || sizeof(typename QTile::Shared) == sizeof(typename OTile::Shared),
    "rows of one width"
);

constexpr int kThreads = (1 + CONSUMERS) * kGroupThreads;
constexpr int kProducer = 0;
constexpr int kWarps = kGroupThreads / 32;

static_assert(CLUSTER == 1 || !IS_PACKED, "tiles of packed sequences have no fixed neighbours");
static_assert(!kIsFp8 || !IS_PACKED, "values of packed sequences are not transposed");

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

// The factors of a tile, where elements have 8 bits.
template <bool kAreThere>
struct FactorsOfTile {
    __device__ static FactorsOfTile of(const Factors*, const Problem&, const Tile&) { return {}; }
    __device__ static constexpr Factors factors() { return {1, 1}; }
};
template <>
struct FactorsOfTile<true> {
    Factors own;

    __device__ __forceinline__ static FactorsOfTile of(
        const Factors* all, const Problem& problem, const Tile& tile
    ) {
        const i32 kv_heads = problem.heads / problem.heads_per_kv_head;
        return {all[tile.entry.index * kv_heads + tile.head / problem.heads_per_kv_head]};
    }
    __device__ __forceinline__ Factors factors() const { return own; }
};

// What the producer hands over beside the queries.
struct Task : FactorsOfTile<kIsFp8> {
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

__device__ void open_rings(SharedMemory& shared) {
    for (int buffer = 0; buffer < QUERY_BUFFERS; ++buffer) {
        for (int group = 0; group < CONSUMERS; ++group) {
            shared.q_full[buffer][group].init(1);
            shared.q_empty[buffer][group].init(kWarps);
        }
    }
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.k_full[stage].init(1);
        // One lane of every consumer warp of every CTA that our multicast writes into.
        shared.k_empty[stage].init(CONSUMERS * kWarps * CLUSTER);
        shared.v_full[stage].init(1);
        shared.v_empty[stage].init(CONSUMERS * kWarps * CLUSTER);
    }
    fence_barrier_init();
}

// What is sent each CTA of a cluster loads a part of the boxes of, for all. Rows that run across
// are the columns of the array, as of transposed values.
template <bool kIsSent = false, bool kRunsAcross = false, typename Rows>
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
        const Coordinates<4> at =
            kRunsAcross ? Coordinates<4>{row, 0, head, entry} : Coordinates<4>{0, head, row, entry};
        if constexpr (kIsSent) {
            constexpr u16 kEveryCta = (1 << CLUSTER) - 1;
            rows.template async_multicast_load_partitioned<CLUSTER>(
                shared, full, at, kEveryCta, block_rank_in_cluster()
            );
        } else {
            rows.async_copy(shared, full, at);
        }
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
    const Factors* factors;
    Ring k_place = Ring::for_producer();
    Ring v_place = Ring::for_producer();
    TaskPlace place;

    // Hands a tile over, as soon as the one that had its buffer is done with.
    __device__ __forceinline__ void load_q(const Problem& problem, const Tile& tile) {
        hand_over({FactorsOfTile<kIsFp8>::of(factors, problem, tile), tile, false});
        for (int group = 0; group < CONSUMERS; ++group) {
            load_rows(
                q, shared.q[place.buffer()][group], shared.q_full[place.buffer()][group],
                tile.entry.index, tile.entry.queries, tile.head,
                tile.position + group * kGroupPositions
            );
        }
        place.step();
    }

    __device__ __forceinline__ void load_k(
        const Problem& problem, const Tile& tile, i32 kv_head, i32 block
    ) {
        load_block<false>(
            k, k_place, shared.k, shared.k_full, shared.k_empty, tile.entry.index, tile.entry.keys,
            problem.page_step, kv_head, block
        );
    }

    __device__ __forceinline__ void load_v(
        const Problem& problem, const Tile& tile, i32 kv_head, i32 block
    ) {
        load_block<kIsFp8>(
            v, v_place, shared.v, shared.v_full, shared.v_empty, tile.entry.index, tile.entry.keys,
            problem.page_step, kv_head, block
        );
    }

    __device__ __forceinline__ void end() {
        hand_over({{}, {}, true});
        for (auto& full : shared.q_full[place.buffer()]) full.arrive();
    }

private:
    // Every group is done with what was here before.
    __device__ __forceinline__ void hand_over(const Task& task) {
        for (auto& empty : shared.q_empty[place.buffer()]) empty.wait(place.phase() ^ 1);
        shared.tasks[place.index] = task;
    }

    template <bool kRunsAcross, typename Rows>
    __device__ __forceinline__ static void load_block(
        const Rows& rows,
        Ring& place,
        typename Rows::Shared (&stages)[STAGES],
        SharedMemBarrier (&full)[STAGES],
        SharedMemBarrier (&empty)[STAGES],
        i32 entry,
        const RaggedSequence& keys,
        i32,
        i32 kv_head,
        i32 block
    ) {
        empty[place.index].wait(place.phase);
        load_rows<(CLUSTER > 1), kRunsAcross>(
            rows, stages[place.index], full[place.index], entry, keys, kv_head, block * BLOCK_N
        );
        place.step();
    }

    // The same from pages, the first of which is looked up ahead of the wait.
    template <bool, typename Rows, int kPageSize>
    __device__ __forceinline__ static void load_block(
        const Rows& rows,
        Ring& place,
        typename Rows::Shared (&stages)[STAGES],
        SharedMemBarrier (&full)[STAGES],
        SharedMemBarrier (&empty)[STAGES],
        i32,
        const PagedSequence<kPageSize>& keys,
        i32 page_step,
        i32 kv_head,
        i32 block
    ) {
        const i32 page = keys.page_of(block * BLOCK_N);
        empty[place.index].wait(place.phase);
        load_pages(
            rows, stages[place.index], full[place.index], keys, page, page_step, kv_head,
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
    if (blocks.count() > 0) loads.load_k(problem, tile, kv_head, blocks.end - 1);
    loads.load_q(problem, tile);
    if (blocks.count() == 0) return;
    for (int block = blocks.end - 2; block >= blocks.first; --block) {
        loads.load_k(problem, tile, kv_head, block);
        loads.load_v(problem, tile, kv_head, block + 1);
    }
    loads.load_v(problem, tile, kv_head, blocks.first);
}

template <typename Walk>
__device__ void load_tiles(Loads loads, const Problem& problem, const Walk& walk) {
    i32 index = walk.first();
    for (i32 round = 1; index >= 0; ++round) {
        const Tile tile = walk.tile(index);
        index = walk.next(round);
        load_tile(loads, problem, tile);
    }
    loads.end();
}

}  // namespace tmaasync
