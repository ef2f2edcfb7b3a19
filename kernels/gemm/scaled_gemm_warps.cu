// Block-scaled GEMM on chips without tensor memory (sm_120a): C[M, N] = scale A[M, K] B[K, N],
// whose operands have a scale factor for every 32 elements of K (MXFP8, MXFP4) or every 16 (NVFP4).
// A warp-specialised persistent kernel as gemm.cu; the consumers' warps multiply with mma.sync,
// which applies the factors. Compiled and emulated, not run on a chip.
//
//   ATile, BTile, AElement, BElement, BLOCK, IS_SCALED    as in scaled_gemm_tensor_memory.cu; A has
//                   64 * CONSUMERS rows, and B BLOCK_N columns: 32, 64 or 128
//   AFactorTile, BFactorTile    the factors of a stage, of whole atoms of 128 rows:
//                   [1, factors / 4, 128 words]
//   CTile, CONSUMERS, BLOCK_N, STAGES, GROUP_M    as in gemm.cu, with N contiguous
//
// k counts bytes. Grid: any number of CTAs of 128 * (1 + CONSUMERS) threads. Edges are as in
// gemm.cu.
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/static_scheduler.cuh>

#include "scaled_warps.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

using Tiles = OutputTiles<64 * CONSUMERS, BLOCK_N, Cluster, GROUP_M>;

extern "C" __device__ const int scaled_gemm_warps_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_gemm_warps(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AFactorTile a_factors,
    const __grid_constant__ BFactorTile b_factors,
    const __grid_constant__ CTile c,
    const float* scale_a,
    const float* scale_b,
    float alpha,
    int m,
    int n,
    int k
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const StaticScheduler schedule(Tiles(m, n));
    const int k_blocks = count_tiles(k, OperandA::kDepth);

    const auto load = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (const auto& stage : producer.produce(k_blocks)) {
                const int depth = stage.iteration() * OperandA::kDepth;
                const int atom = stage.iteration() * kAtoms;
                a.async_copy(stage->a, stage.full(), {depth, tile.m});
                b.async_copy(stage->b, stage.full(), {depth, tile.n});
                a_factors.async_copy(stage->a_factors, stage.full(), {0, atom, tile.m / kAtomRows});
                b_factors.async_copy(stage->b_factors, stage.full(), {0, atom, tile.n / kAtomRows});
            }
        }
    };
    const auto multiply = [&](int consumer) {
        if constexpr (IS_SCALED) wait_for_previous_grids();
        const auto scale_of = [&](const OutputTile&) {
            return whole_scale(alpha, scale_a, scale_b);
        };
        multiply_tiles(shared, schedule, k_blocks, scale_of, c, consumer);
    };
    Roles::run(shared, load, multiply, a, b, a_factors, b_factors, c);
}
