#pragma once

// The epilogue: stores a consumer's output and log-sum-exp in global memory. attention.cu explains
// the constants.
#include "pipeline.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

using StagedOutput = typename Operands::Output<OTile>;

// The first of a thread's two rows, as a row of the tile; the other is eight rows below.
__device__ __forceinline__ int row_of_thread(int consumer) {
    return consumer * kConsumerRows + accumulator_row(thread_in_warpgroup(), 0);
}

// The log-sum-exp of a row, which must be a query.
__device__ __forceinline__ float& lse_at(
    const Problem& problem, const Tile& tile, int row, float* lse
) {
    const int position = tile.position_of(row);
    const int head = tile.head + row % HEADS_PER_TILE;
    const i64 line = static_cast<i64>(IS_PACKED ? 0 : tile.entry.index) * problem.heads + head;
    return lse[line * problem.queries + tile.entry.queries.start + position];
}

__device__ __forceinline__ void write_lse(
    const Problem& problem, const Tile& tile, int consumer, const float (&values)[2], float* lse
) {
    if (lane_index() % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(consumer) + 8 * half;
        if (tile.is_query(row)) lse_at(problem, tile, row, lse) = values[half];
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

// Store the staged tile of a consumer. Called by one thread.
__device__ __forceinline__ void store_staged(
    const OTile& o, const typename OTile::Shared& staged, const Tile& tile, int consumer
) {
    store_rows(o, staged, tile.entry, tile.head, tile.position + consumer * kConsumerPositions);
    commit_group();
}

}  // namespace tmaasync::kernels::attention
