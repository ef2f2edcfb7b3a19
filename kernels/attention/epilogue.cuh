#pragma once

// The epilogue: stores a consumer's output and log-sum-exp in global memory. attention.cu explains
// the constants.
#include "pipeline.cuh"
#include "rows.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

using StagedOutput = typename Operands::Output<OTile>;

// The first of a thread's two rows, as a row of the tile; the other is eight rows below.
__device__ __forceinline__ int row_of_thread(int consumer) {
    return consumer * kConsumerRows + accumulator_row(thread_in_warpgroup(), 0);
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

// Store the staged tile of a consumer. Called by one thread.
template <typename Output>
__device__ __forceinline__ void store_staged(
    const Output& o, const typename OTile::Shared& staged, const Tile& tile, int consumer
) {
    store_rows(o, staged, tile.entry, tile.head, tile.position + consumer * kConsumerPositions);
    commit_group();
}

}  // namespace tmaasync::kernels::attention
