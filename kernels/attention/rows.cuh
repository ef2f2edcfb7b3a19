#pragma once

// The rows of a tile in global memory. attention.cu explains the constants.
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

// The log-sum-exp of a row, which must be a query.
__device__ __forceinline__ float& lse_at(
    const Problem& problem, const Tile& tile, int row, float* lse
) {
    const int position = tile.position_of(row);
    const int head = tile.head + row % HEADS_PER_TILE;
    const i64 line = static_cast<i64>(IS_PACKED ? 0 : tile.entry.index) * problem.heads + head;
    return lse[line * problem.queries + tile.entry.queries.start + position];
}

// Store staged rows from position `row` on, for every head of a tile. Called by one thread.
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

}  // namespace tmaasync::kernels::attention
