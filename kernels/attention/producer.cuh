#pragma once

// The producer, which loads queries, keys and values. attention.cu explains the constants.
#include "abi.cuh"
#include "loads.cuh"
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
            load_rows(q, shared, full, tile, tile.position + consumer * kConsumerPositions);
        };
        pipelines.load(
            task, tile.blocks(problem), load_queries,
            [&](auto& ring, i32 block) {
                load_block<kPagesAhead, false>(
                    k, ring, problem, tile, tile.entry.keys, kv_head, block
                );
            },
            [&](auto& ring, i32 block) {
                load_block<kPagesAhead, kIsFp8 && !TRANSPOSES_V>(
                    v, ring, problem, tile, tile.entry.keys, kv_head, block
                );
            }
        );
    }
};

// Load all tiles; take a tile of the schedule while the previous tile is loaded.
template <typename Loader, typename Scheduler>
__device__ void load_tiles(Loader& producer, Scheduler schedule) {
    while (!schedule.done()) {
        const Tile tile = schedule.tile();
        schedule.step();
        producer.load(tile);
    }
    producer.pipelines.end();
}

}  // namespace tmaasync::kernels::attention
