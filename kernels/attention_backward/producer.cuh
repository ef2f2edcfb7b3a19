#pragma once

// The producer, which loads keys, values, queries and dO. attention_backward.cu explains the
// constants.
#include <tmaasync/tma.cuh>

#include "abi.cuh"
#include "pipeline.cuh"
#include "rows.cuh"
#include "scheduler.cuh"

namespace tmaasync {

struct Producer {
    static constexpr u32 kBlockBytes = Queries::kStageBytes + sizeof(RowValues);

    const BackwardProblem& problem;
    const QTile& q;
    const KTile& k;
    const KTile& v;
    const QTile& dout;
    const RowStatistics* statistics;
    i32 tiles_per_head;
    SharedMemory& shared;
    RingProducer<KeysAndValues> keys_and_values;
    RingProducer<Queries> queries;
    RingProducer<Queries> gradients;

    __device__ __forceinline__ Producer(
        const Sequences& sequences,
        const QTile& q,
        const KTile& k,
        const KTile& v,
        const QTile& dout,
        const RowStatistics* statistics,
        SharedMemory& shared
    )
        : problem(sequences.problem),
          q(q),
          k(k),
          v(v),
          dout(dout),
          statistics(statistics),
          tiles_per_head(QueryTiles{sequences}.per_head()),
          shared(shared),
          keys_and_values(shared.rows.producer()),
          queries(shared.queries.producer()),
          gradients(shared.gradients.producer()) {}

    // Loads what a tile needs, in the order in which the consumers wait for it. The message is read
    // where it lies: the producer has few registers.
    __device__ __forceinline__ void load(const KeyTile& next) {
        const auto stage = keys_and_values.acquire_with(Task{next, false});
        const KeyTile& tile = shared.rows.side[kKeys].tile;
        load_parts(k, *stage, stage.full(), tile);
        bool has_values = false;
        for (i32 head = 0; head < problem.heads_per_kv_head; ++head) {
            for (i32 block = tile.blocks.first; block < tile.blocks.end; ++block) {
                load_queries(tile, head, block);
                if (!has_values) load_values(tile);
                has_values = true;
                load_gradients(tile, head, block);
            }
        }
        if (!has_values) load_values(tile);
    }

    // Ends the loops of the other warps.
    __device__ __forceinline__ void end() {
        const auto stage = keys_and_values.acquire_with(Task{{}, true}, 0);
    }

private:
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

    __device__ __forceinline__ void load_queries(const KeyTile& tile, i32 head, i32 block) {
        const auto stage = queries.acquire(kBlockBytes);
        load_block(q, *stage, stage.full(), tile, head, block);
        load_statistic(
            statistics_of(tile, head, block).lse, stage.full(), shared.queries.side[stage.index()]
        );
    }

    __device__ __forceinline__ void load_gradients(const KeyTile& tile, i32 head, i32 block) {
        const auto stage = gradients.acquire(kBlockBytes);
        load_block(dout, *stage, stage.full(), tile, head, block);
        load_statistic(
            statistics_of(tile, head, block).delta, stage.full(),
            shared.gradients.side[stage.index()]
        );
    }

    // Loads a block of rows of one of the heads that share the keys.
    __device__ __forceinline__ void load_block(
        const QTile& rows,
        typename QTile::Shared& block_of_rows,
        SharedMemBarrier& full,
        const KeyTile& tile,
        i32 head,
        i32 block
    ) {
        const i32 query_head = tile.kv_head * problem.heads_per_kv_head + head;
        const HeadRows of{tile.queries, tile.entry, query_head};
        load_rows(rows, block_of_rows, full, of, block * BLOCK_M);
    }

    __device__ __forceinline__ const RowStatistics& statistics_of(
        const KeyTile& tile, i32 head, i32 block
    ) const {
        return statistics[tile.first_tile + head * tiles_per_head + block];
    }

    __device__ __forceinline__ static void load_statistic(
        const RowValues& from, SharedMemBarrier& full, RowValues& to
    ) {
        tma_load_1d(&from, full, &to, sizeof(RowValues));
    }
};

// Loads all tiles of a schedule; takes each while the one before is loaded.
template <typename Scheduler>
__device__ void load_tiles(Producer& producer, Scheduler schedule) {
    while (!schedule.done()) {
        const KeyTile tile = schedule.tile();
        schedule.step();
        if (tile.exists()) producer.load(tile);
    }
    producer.end();
}

}  // namespace tmaasync
