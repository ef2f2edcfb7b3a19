#pragma once

// The producer, which loads keys, values, queries and dO. attention_backward.cu explains the
// constants.
#include <tmaasync/tma.cuh>

#include "abi.cuh"
#include "pipeline.cuh"
#include "rows.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention_backward {

struct Producer {
    static constexpr u32 kBlockBytes = Queries::kStageBytes + sizeof(RowValues);

    const BackwardProblem& problem;
    const QTile& q;
    const KTile& k;
    const KTile& v;
    const QTile& dout;
    const RowStatistics* statistics;
    SharedMemory& shared;
    RingProducer<KeysAndValues> keys_and_values;
    RingProducer<Queries> queries;
    RingProducer<Queries> gradients;

    __device__ __forceinline__ Producer(
        const BackwardProblem& problem,
        const QTile& q,
        const KTile& k,
        const KTile& v,
        const QTile& dout,
        const RowStatistics* statistics,
        SharedMemory& shared
    )
        : problem(problem),
          q(q),
          k(k),
          v(v),
          dout(dout),
          statistics(statistics),
          shared(shared),
          keys_and_values(shared.rows.producer()),
          queries(shared.queries.producer()),
          gradients(shared.gradients.producer()) {}

    // Load the data of a tile, if there is one. The first block of queries comes first: its stages
    // are free before the stages of keys and values, which the previous tile needs to its end.
    __device__ __forceinline__ void load(const KeyTile& next) {
        // Kept in the unused side data of the values, because the producer has few registers.
        KeyTile& tile = shared.rows.side[kValues].tile;
        tile = next;
        if (!tile.exists()) return;
        tile.find_blocks(problem);
        const i32 heads = problem.heads_per_kv_head, steps = tile.blocks.count() * heads;
        auto visit = Visit::first(tile);
        if (steps > 0) load_block(tile, visit);
        load_keys(tile);
        load_values(tile);
        for (i32 step = 1; step < steps; ++step) {
            visit.step(tile, heads);
            load_block(tile, visit);
        }
    }

    // End the loops of the other warps.
    __device__ __forceinline__ void end() {
        const auto stage = keys_and_values.acquire_with(Task{{}, true}, 0);
    }

private:
    __device__ __forceinline__ void load_keys(const KeyTile& tile) {
        const auto stage = keys_and_values.acquire_with(Task{tile, false});
        load_parts(k, *stage, stage.full(), tile);
    }

    __device__ __forceinline__ void load_values(const KeyTile& tile) {
        const auto stage = keys_and_values.acquire();
        load_parts(v, *stage, stage.full(), tile);
    }

    __device__ __forceinline__ void load_parts(
        const KTile& rows, KeyRows& shared, SharedMemBarrier& full, const KeyTile& tile
    ) {
#pragma unroll
        for (int consumer = 0; consumer < kConsumers; ++consumer) {
            const i32 row = tile.position + consumer * kConsumerKeys;
            load_rows(rows, shared.consumers[consumer], full, tile.rows_of_keys(), row);
        }
    }

    // Load a block of queries and dO of one of the heads that share the keys.
    __device__ __forceinline__ void load_block(const KeyTile& tile, const Visit& visit) {
        const HeadRows of{
            tile.queries, tile.entry, tile.kv_head * problem.heads_per_kv_head + visit.head
        };
        const RowStatistics& own = statistics[visit.number(problem, tile)];
        load_rows_and(q, own.lse, queries, shared.queries, of, visit.block);
        load_rows_and(dout, own.delta, gradients, shared.gradients, of, visit.block);
    }

    // Load rows of a block, and one number per row.
    __device__ __forceinline__ static void load_rows_and(
        const QTile& rows,
        const RowValues& values,
        RingProducer<Queries>& producer,
        Queries& ring,
        const HeadRows& of,
        i32 block
    ) {
        const auto stage = producer.acquire(kBlockBytes);
        load_rows(rows, *stage, stage.full(), of, block * BLOCK_M);
        tma_load_1d(&values, stage.full(), &ring.side[stage.index()], sizeof(RowValues));
    }
};

// Load all tiles of a schedule. It takes a tile after the previous tile is loaded, while the
// consumers still have blocks. If taken earlier, a tile would wait for this CTA while other CTAs
// are idle, and so would all tiles that add to dQ after it.
template <typename Scheduler>
__device__ void load_tiles(Producer& producer, Scheduler schedule) {
    for (; !schedule.done(); schedule.step()) producer.load(schedule.tile());
    producer.end();
}

}  // namespace tmaasync::kernels::attention_backward
