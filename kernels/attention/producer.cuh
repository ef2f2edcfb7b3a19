#pragma once

// The producer, which loads queries, keys and values. attention.cu explains the constants.
#include <tmaasync/attention/paged.cuh>

#include "abi.cuh"
#include "pipeline.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

// Number of pages looked up together. With pages of 16, on an H200 (2026-11-23): FP8 decode is 1.25
// to 1.37 times as fast with 8; bf16 prefill 1.11 times with 4 (docs/decisions/attention.md), and
// not faster with 8. In FP8 with several consumers, 4 spill at head dimension 192.
constexpr int kPagesAhead = CONSUMERS == 1 ? 8 : kIsFp8 ? 1 : 4;

struct Producer {
    const Problem& problem;
    const QTile& q;
    const KTile& k;
    const VTile& v;
    const Descales& descales;
    AttentionProducer<Pipelines> pipelines;

    __device__ __forceinline__ void load(const Tile& tile) {
        const i32 kv_head = tile.head / problem.heads_per_kv_head;
        const Task task{TileDescale<kIsFp8>::of(descales, tile, kv_head), tile};
        const auto load_queries = [&](auto& shared, SharedMemBarrier& full, int consumer) {
            const i32 row = tile.position + consumer * kConsumerPositions;
            if constexpr (IS_PACKED) {
                q.async_copy(shared, full, tile.entry.queries, {0, tile.head, row});
            } else {
                q.async_copy(shared, full, {0, tile.head, row, tile.entry.index});
            }
        };
        pipelines.load(
            task, tile.blocks(problem), load_queries,
            [&](auto& ring, i32 block) {
                load_block<false>(k, ring, tile, tile.entry.keys, kv_head, block);
            },
            [&](auto& ring, i32 block) {
                load_block<kIsFp8 && !TRANSPOSES_V>(v, ring, tile, tile.entry.keys, kv_head, block);
            }
        );
    }

private:
    // Load a block of keys or values. With kIsTransposed, for FP8 values from
    // attention_values.cu, the array's columns are the keys.
    template <bool kIsTransposed, typename Rows, typename Ring>
    __device__ __forceinline__ void load_block(
        const Rows& rows,
        Ring& ring,
        const Tile& tile,
        const RaggedSequence& sequence,
        i32 kv_head,
        i32 block
    ) {
        const i32 row = block * BLOCK_N;
        const auto stage = ring.acquire();
        if constexpr (IS_PACKED) {
            rows.async_copy(*stage, stage.full(), sequence, {0, kv_head, row});
        } else if constexpr (kIsTransposed) {
            stage.async_multicast_load(rows, *stage, {row, 0, kv_head, tile.entry.index});
        } else {
            stage.async_multicast_load(rows, *stage, {0, kv_head, row, tile.entry.index});
        }
    }

    // The same from a paged KV cache. It looks up the first pages before it waits.
    template <bool, typename Rows, typename Ring, int kPageSize>
    __device__ __forceinline__ void load_block(
        const Rows& rows,
        Ring& ring,
        const Tile&,
        const PagedSequence<kPageSize>& sequence,
        i32 kv_head,
        i32 block
    ) {
        const PageArray array{problem.page_step, problem.pages};
        const i32 row = block * BLOCK_N;
        const auto pages = PageBoxes<Rows, kPagesAhead>::Pages::of(sequence, array, row);
        const auto stage = ring.acquire();
        load_pages<kPagesAhead>(rows, *stage, stage.full(), sequence, pages, array, kv_head, row);
    }
};

// Load all tiles; take a tile of the schedule while the previous tile is loaded.
template <typename Scheduler>
__device__ void load_tiles(Producer& producer, Scheduler schedule) {
    while (!schedule.done()) {
        const Tile tile = schedule.tile();
        schedule.step();
        producer.load(tile);
    }
    producer.pipelines.end();
}

}  // namespace tmaasync::kernels::attention
