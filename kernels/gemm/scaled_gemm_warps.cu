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
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/epilogue.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/static_scheduler.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/warp_scaled_mma.cuh>

#include "block_scaled_stage.cuh"
#include "whole_scale.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;
using Cluster = ClusterShape<1>;
using Tiles = OutputTiles<64 * CONSUMERS, BLOCK_N, Cluster, GROUP_M>;
using Roles = WarpSpecialized<CONSUMERS>;
using Output = Epilogue<CTile, BLOCK_N>;
using Scales = WarpScales<BLOCK_N>;

static_assert(OperandA::kExtent == 64 * CONSUMERS && OperandB::kExtent == BLOCK_N);
static_assert(OperandA::kDepth == 128 && OperandB::kDepth == 128, "a stage is 128 bytes deep");

constexpr int kAtomWords = 128;
constexpr int kAtoms = AFactorTile::kBytes / (4 * kAtomWords);  // of a stage, along K

struct SharedMemory {
    Ring<Stage, STAGES, ConsumerWarps<4 * CONSUMERS>> ring;
    Output::Shared output[CONSUMERS];

    __device__ void init() { ring.init(); }
};

extern "C" __device__ const int scaled_gemm_warps_shared_bytes = sizeof(SharedMemory);

// Multiply a stage by the consumer's 64 rows from `row` on.
__device__ __forceinline__ void multiply_stage(
    float (&accumulators)[BLOCK_N / 2], const Stage& stage, const OutputTile& tile, int row
) {
    const u32 factor_row = tile.m % 128 + row + thread_in_warpgroup() / 32 * 16;
    const auto scales = [&](int atom) {
        return Scales(
            stage.a_factors.data() + atom * kAtomWords, stage.b_factors.data() + atom * kAtomWords,
            factor_row, tile.n % 128
        );
    };
    const WarpOperand<OperandA> a(OperandA::start_address(stage.a, row));
    const WarpOperand<OperandB> b(OperandB::start_address(stage.b, 0));
    warp_scaled_mma_steps<AElement, BElement, BLOCK>(accumulators, a, b, scales);
}

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
                a_factors.async_copy(stage->a_factors, stage.full(), {0, atom, tile.m / 128});
                b_factors.async_copy(stage->b_factors, stage.full(), {0, atom, tile.n / 128});
            }
        }
    };
    const auto multiply = [&](int consumer) {
        const int row = 64 * consumer;
        auto stages = shared.ring.consumer();
        Output output(shared.output[consumer], consumer, row);
        if constexpr (IS_SCALED) wait_for_previous_grids();
        for (const auto tile : schedule) {
            float accumulators[1][BLOCK_N / 2] = {};
            for (const auto& stage : stages.consume(k_blocks)) {
                multiply_stage(accumulators[0], *stage, tile, row);
            }
            if constexpr (IS_SCALED) {
                const float scale = whole_scale(alpha, scale_a, scale_b);
                output.store(accumulators, c, tile, [=](float value, int, int) {
                    return value * scale;
                });
            } else {
                output.store(accumulators, c, tile);
            }
        }
        output.drain();
    };
    Roles::run(shared, load, multiply, a, b, a_factors, b_factors, c);
}
