// Block-scaled grouped GEMM (MoE) on chips without tensor memory (sm_120a): C[rows of a group, N] =
// scale A[the same rows, K] B[group, K, N], with the formats of scaled_gemm_warps.cu and the groups
// of grouped_gemm.cu. Compiled and emulated, not run on a chip.
//
//   BTile           (1, ...) one of the matrices
//   CTile           RaggedTensorMap of C, with the tile of gemm.cu
//   CONSUMERS       2: a CTA has the 128 rows of an atom of factors
//   IS_SCALED       whether scale may differ from 1: it is alpha * scale_a[group] * scale_b[group]
//
// The other parameters are as in scaled_gemm_warps.cu, the factors as in
// scaled_grouped_gemm_tensor_memory.cu, and `broken_group` as in grouped_gemm.cu. k counts bytes.
#include <tmaasync/structured/grouped_scheduler.cuh>

#include "groups.cuh"
#include "scaled_warps.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

static_assert(CONSUMERS == 2, "a tile has the rows of an atom");

extern "C" __device__ const int scaled_grouped_gemm_warps_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_grouped_gemm_warps(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AFactorTile a_factors,
    const __grid_constant__ BFactorTile b_factors,
    const __grid_constant__ CTile c,
    const float* scale_a,
    const float* scale_b,
    float alpha,
    const i32* ends,
    int count,
    int total_rows,
    int n,
    int k,
    i32* broken_group
) {
    using Scheduler = GroupedScheduler<kAtomRows, BLOCK_N, 1, GROUP_M>;
    auto& shared = dynamic_shared<SharedMemory>();
    const RowGroups groups{ends, count, total_rows};
    const int k_blocks = count_tiles(k, OperandA::kDepth);

    const auto load = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : Scheduler(groups, n)) {
            const int a_atoms = tile.m_tiles_before + tile.m / kAtomRows;
            const int b_atoms = tile.group * count_tiles(n, kAtomRows) + tile.n / kAtomRows;
            for (const auto& stage : producer.produce(k_blocks)) {
                const int depth = stage.iteration() * OperandA::kDepth;
                const int atom = stage.iteration() * kAtoms;
                a.async_copy(stage->a, stage.full(), {depth, tile.rows.start + tile.m});
                b.async_copy(stage->b, stage.full(), {depth, tile.n, tile.group});
                a_factors.async_copy(stage->a_factors, stage.full(), {0, atom, a_atoms});
                b_factors.async_copy(stage->b_factors, stage.full(), {0, atom, b_atoms});
            }
        }
    };
    const auto multiply = [&](int consumer) {
        // An earlier grid may have written the ends.
        wait_for_previous_grids();
        const auto scale_of = [&](const GroupTile& tile) {
            return whole_scale(alpha, of_group(scale_a, tile.group), of_group(scale_b, tile.group));
        };
        multiply_tiles(shared, Scheduler(groups, n), k_blocks, scale_of, c, consumer);
    };
    const auto help = [&](int helper) { report_groups(groups, broken_group, helper); };
    Roles::run_with_helpers(shared, load, help, multiply, a, b, a_factors, b_factors, c);
}
