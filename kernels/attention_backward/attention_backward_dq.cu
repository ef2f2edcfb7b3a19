// Runs after attention_backward.cu: scales dQ of a tile of queries, converts it from fp32, and
// stores it with the strides of the caller's array.
//
// BLOCK_M, HEAD_DIM and IS_PACKED are as in attention_backward.cu; QTile is a tile of dQ.
//
// Grid: one CTA of 256 threads per tile of queries in the workspace.
#include <tmaasync/bulk_group.cuh>

#include "abi.cuh"
#include "config.cuh"
#include "query_tiles.cuh"
#include "rows.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention_backward;

constexpr int kThreads = 128 * kConsumers;

struct SharedMemory {
    typename QTile::Shared dq;
};

extern "C" __device__ const int attention_backward_dq_shared_bytes = sizeof(SharedMemory);

// Stage a consumer's share of dQ, which this warpgroup reads in the layout of the consumer's
// threads. Stage zeros if the queries attend to no key, because then nothing was written.
__device__ __forceinline__ void stage_part(
    SharedMemory& shared, const DqPart& part, bool is_written, int consumer, float scale
) {
    using Staged = QueriesOperand<Major::kK>;
    float values[4 * kDqQuads];
#pragma unroll
    for (int i = 0; i < kDqQuads; ++i) {
        Quad quad{};
        if (is_written) quad = part.quads[i][thread_in_warpgroup()];
#pragma unroll
        for (int j = 0; j < 4; ++j) values[4 * i + j] = quad.values[j] * scale;
    }
    const u32 column = consumer * kDqColumns;
    if constexpr (kDqShare == DqShare::kRows) {
        store_accumulators<Staged, kDqColumns>(shared.dq, values, consumer * 64, 0);
    } else if constexpr (kDqShare == DqShare::kColumns) {
        store_accumulators<Staged, kDqColumns>(shared.dq, values, 0, column);
    } else {
        u32 pairs[BLOCK_M / 16][4];
        accumulators_to_a<Element>(pairs, values);
        store_a_transposed<Staged>(shared.dq, pairs, 0, column);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads) attention_backward_dq(
    const __grid_constant__ QTile dq_rows,
    const DqTile* dq,
    const u32* turns,
    const i32* cu_seqlens_q,
    const __grid_constant__ BackwardProblem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Sequences sequences{problem, cu_seqlens_q, nullptr, problem.batch};
    const i32 number = blockIdx.x;
    launch_dependent_grids();
    wait_for_previous_grids();
    const auto tile = QueryTiles{sequences}.at(number);
    if (!tile.exists()) return;
    const int consumer = warpgroup_index();
    const bool is_written = turns[number * kConsumers + consumer] > 0;
    stage_part(shared, dq[number].parts[consumer], is_written, consumer, problem.scale);
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x != 0) return;
    store_rows(dq_rows, shared.dq, tile.rows(), tile.position);
    commit_group();
    wait_group_read<0>();
}
