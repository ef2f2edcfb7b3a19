#pragma once

// Split-KV (flash-decoding, Dao et al. 2023): attention.cu writes the partial outputs of a tile,
// one per split of its keys, to a workspace, and attention_combine.cu combines them.
#include "abi.cuh"
#include "epilogue.cuh"

namespace tmaasync::kernels::attention {

using ConsumerPartial = PartialOutput<kConsumerRows, HEAD_DIM>;
using TilePartial = PartialTile<CONSUMERS, kConsumerRows, HEAD_DIM>;

// Write the thread's accumulators.
__device__ __forceinline__ void write_partial(
    ConsumerPartial& partial, const Accumulators& accumulators, const Tile& tile, int consumer
) {
    struct alignas(8) Pair {
        float values[2];
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(0) + 8 * half;
        if (!tile.is_query(row_of_thread(consumer) + 8 * half)) continue;
#pragma unroll
        for (int i = 2 * half; i < HEAD_DIM / 2; i += 4) {
            auto& target = partial.accumulators[row][accumulator_column(thread_in_warpgroup(), i)];
            reinterpret_cast<Pair&>(target) = {accumulators[i], accumulators[i + 1]};
        }
    }
}

// Write row_max and row_sum of the thread's rows.
__device__ __forceinline__ void write_partial_softmax(
    ConsumerPartial& partial, const Softmax& softmax, const float (&row_sums)[2]
) {
    if (lane_index() % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_of_thread(0) + 8 * half;
        partial.row_max[row] = softmax.scaled_max(half);
        partial.row_sum[row] = row_sums[half];
    }
}

}  // namespace tmaasync::kernels::attention
