#pragma once

// The way of a group's sums to global memory. The constants are explained in attention.cu.
#include "mainloop.cuh"

namespace tmaasync {

using OutputO =
    WgmmaBuffer<typename OTile::Element, OTile::kSwizzle, Major::kK, kGroupRows, HEAD_DIM>;

// Whether a row of a tile is one of its queries: of others nothing is written.
__device__ __forceinline__ bool is_query(const Tile& tile, int row) {
    return tile.position + row / HEADS_PER_TILE < tile.entry.queries.length;
}

// The place of the log-sum-exp of such a row.
__device__ __forceinline__ float& lse_of(
    const Problem& problem, const Tile& tile, int row, float* lse
) {
    const int position = tile.position + row / HEADS_PER_TILE;
    const int head = tile.head + row % HEADS_PER_TILE;
    const i64 line = static_cast<i64>(IS_PACKED ? 0 : tile.entry.index) * problem.heads + head;
    return lse[line * problem.queries + tile.entry.queries.start + position];
}

__device__ __forceinline__ void write_lse(
    const Problem& problem, const Tile& tile, int group, const float (&values)[2], float* lse
) {
    if (lane_index() % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(group) + 8 * half;
        if (is_query(tile, row)) lse_of(problem, tile, row, lse) = values[half];
    }
}

// Stores what a group has staged. One thread.
__device__ __forceinline__ void store_staged(
    const OTile& o, const typename OTile::Shared& staged, const Tile& tile, int group
) {
    store_rows(o, staged, tile.entry, tile.head, tile.position + group * kGroupPositions);
    commit_group();
}

// Stores the sums times the shares of the thread's rows, as one group. Nobody uses `staged` any
// more.
__device__ __forceinline__ void store_group(
    const OTile& o,
    typename OTile::Shared& staged,
    const Tile& tile,
    int group,
    Sums& sums,
    const float (&shares)[2]
) {
    const NamedBarrier<kGroupThreads> everyone{1u + group};
    everyone.sync();
    scale_rows(sums, shares);
    store_accumulators<OutputO, HEAD_DIM>(staged, sums);
    fence_async_view_proxy();
    everyone.sync();
    if (threadIdx.x % kGroupThreads == 0) store_staged(o, staged, tile, group);
}

}  // namespace tmaasync
