#pragma once

// The epilogue: stores a consumer's output and log-sum-exp in global memory. attention.cu
// explains the constants.
#include "mainloop.cuh"
#include "pipeline.cuh"
#include "scheduler.cuh"

namespace tmaasync {

using OutputO =
    WgmmaBuffer<typename OTile::Element, OTile::kSwizzle, Major::kK, kConsumerRows, HEAD_DIM>;

// Whether a row of a tile is one of its queries; other rows are not written.
__device__ __forceinline__ bool is_query(const Tile& tile, int row) {
    return tile.position + row / HEADS_PER_TILE < tile.entry.queries.length;
}

// The log-sum-exp of a row that is a query.
__device__ __forceinline__ float& lse_at(
    const Problem& problem, const Tile& tile, int row, float* lse
) {
    const int position = tile.position + row / HEADS_PER_TILE;
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
        if (is_query(tile, row)) lse_at(problem, tile, row, lse) = values[half];
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

// Stores the staged tile of a consumer. Called by one thread.
__device__ __forceinline__ void store_staged(
    const OTile& o, const typename OTile::Shared& staged, const Tile& tile, int consumer
) {
    store_rows(o, staged, tile.entry, tile.head, tile.position + consumer * kConsumerPositions);
    commit_group();
}

// Stores a consumer's accumulators times `normalizers` of the thread's rows, as one bulk group. No
// thread accesses `staged` any more.
__device__ __forceinline__ void store_consumer(
    const OTile& o,
    typename OTile::Shared& staged,
    const Tile& tile,
    int consumer,
    Accumulators& accumulators,
    const float (&normalizers)[2]
) {
    const NamedBarrier<kWarpgroupThreads> warpgroup{1u + consumer};
    warpgroup.sync();
    scale_rows(accumulators, normalizers);
    store_accumulators<OutputO, HEAD_DIM>(staged, accumulators);
    fence_async_view_proxy();
    warpgroup.sync();
    if (threadIdx.x % kWarpgroupThreads == 0) store_staged(o, staged, tile, consumer);
}

}  // namespace tmaasync
