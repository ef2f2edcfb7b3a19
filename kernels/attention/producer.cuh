#pragma once

// The producer, which loads queries, keys and values. attention.cu explains the constants.
#include "abi.cuh"
#include "pages.cuh"
#include "pipeline.cuh"
#include "scheduler.cuh"

namespace tmaasync {

// Loads a tile. With kIsMulticast, each CTA of the cluster loads its share of the boxes and
// multicasts it to the cluster. With kIsTransposed, as for transposed values, the array's columns
// are the keys.
template <bool kIsMulticast = false, bool kIsTransposed = false, typename Rows>
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
        const Coordinates<4> at = kIsTransposed ? Coordinates<4>{row, 0, head, entry}
                                                : Coordinates<4>{0, head, row, entry};
        if constexpr (kIsMulticast) {
            constexpr u16 kEveryCta = (1 << CLUSTER) - 1;
            rows.template async_multicast_load_partitioned<CLUSTER>(
                shared, full, at, kEveryCta, block_rank_in_cluster()
            );
        } else {
            rows.async_copy(shared, full, at);
        }
    }
}

struct Producer {
    SharedMemory& shared;
    const QTile& q;
    const KTile& k;
    const VTile& v;
    const Descale* descales;
    StageState k_state = StageState::for_producer();
    StageState v_state = StageState::for_producer();
    TaskState task_state;

    // Hands a tile over and loads its queries, as soon as their buffer is released.
    __device__ __forceinline__ void load_q(const Problem& problem, const Tile& tile) {
        hand_over({TileDescale<kIsFp8>::of(descales, problem, tile), tile, false});
        for (int consumer = 0; consumer < CONSUMERS; ++consumer) {
            load_rows(
                q, shared.q[task_state.buffer()][consumer],
                shared.q_full[task_state.buffer()][consumer], tile.entry.index, tile.entry.queries,
                tile.head, tile.position + consumer * kConsumerPositions
            );
        }
        task_state.step();
    }

    __device__ __forceinline__ void load_k(
        const Problem& problem, const Tile& tile, i32 kv_head, i32 block
    ) {
        load_block<false>(
            k, k_state, shared.k, shared.k_full, shared.k_empty, tile.entry.index, tile.entry.keys,
            problem.page_step, kv_head, block
        );
    }

    __device__ __forceinline__ void load_v(
        const Problem& problem, const Tile& tile, i32 kv_head, i32 block
    ) {
        load_block<kIsFp8>(
            v, v_state, shared.v, shared.v_full, shared.v_empty, tile.entry.index, tile.entry.keys,
            problem.page_step, kv_head, block
        );
    }

    __device__ __forceinline__ void end() {
        hand_over({{}, {}, true});
        for (auto& full : shared.q_full[task_state.buffer()]) full.arrive();
    }

private:
    __device__ __forceinline__ void hand_over(const Task& task) {
        // Wait until every consumer has released the buffer's queries.
        for (auto& empty : shared.q_empty[task_state.buffer()]) empty.wait(task_state.phase() ^ 1);
        shared.tasks[task_state.index] = task;
    }

    template <bool kIsTransposed, typename Rows>
    __device__ __forceinline__ static void load_block(
        const Rows& rows,
        StageState& state,
        typename Rows::Shared (&stages)[STAGES],
        SharedMemBarrier (&full)[STAGES],
        SharedMemBarrier (&empty)[STAGES],
        i32 entry,
        const RaggedSequence& keys,
        i32,
        i32 kv_head,
        i32 block
    ) {
        empty[state.index].wait(state.phase);
        load_rows<(CLUSTER > 1), kIsTransposed>(
            rows, stages[state.index], full[state.index], entry, keys, kv_head, block * BLOCK_N
        );
        state.step();
    }

    // The same from a paged KV cache. Looks up the first page before it waits.
    template <bool, typename Rows, int kPageSize>
    __device__ __forceinline__ static void load_block(
        const Rows& rows,
        StageState& state,
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
        empty[state.index].wait(state.phase);
        load_pages(
            rows, stages[state.index], full[state.index], keys, page, page_step, kv_head,
            block * BLOCK_N
        );
        state.step();
    }
};

// Loads in the order in which the consumers take the blocks: the keys of a block, then the values
// of the one before.
__device__ __forceinline__ void load_tile(
    Producer& producer, const Problem& problem, const Tile& tile
) {
    const auto blocks = tile.blocks(problem);
    const i32 kv_head = tile.head / problem.heads_per_kv_head;
    if (blocks.count() > 0) producer.load_k(problem, tile, kv_head, blocks.end - 1);
    producer.load_q(problem, tile);
    if (blocks.count() == 0) return;
    for (int block = blocks.end - 2; block >= blocks.first; --block) {
        producer.load_k(problem, tile, kv_head, block);
        producer.load_v(problem, tile, kv_head, block + 1);
    }
    producer.load_v(problem, tile, kv_head, blocks.first);
}

template <typename Scheduler>
__device__ void load_tiles(Producer producer, const Problem& problem, const Scheduler& scheduler) {
    i32 index = scheduler.first();
    for (i32 wave = 1; index >= 0; ++wave) {
        const Tile tile = scheduler.tile(index);
        index = scheduler.next(wave);
        load_tile(producer, problem, tile);
    }
    producer.end();
}

}  // namespace tmaasync
