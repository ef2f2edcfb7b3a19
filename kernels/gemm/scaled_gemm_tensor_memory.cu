// Block-scaled GEMM on Blackwell's tensor memory: C[M, N] = scale A[M, K] B[K, N], whose operands
// have a scale factor for every 32 elements of K (MXFP8, MXFP4) or every 16 (NVFP4). The tensor
// cores apply the factors. Compiled and emulated, not run on a chip.
//
//   ATile, BTile    operand tiles of bytes, 128 deep, 128-byte swizzle, K contiguous. A has 128
//   rows AElement, BElement    what the bytes hold; float4_e2m1 is packed, two in a byte BLOCK
//   elements of K with one scale factor: 32 of type UE8M0, or 16 of type UE4M3 AFactorTile,
//   BFactorTile    the factors of a stage of A, and of all CTAS of B: atoms of 512
//                   bytes, [rows / 128, factors / 4, 128 words]
//   IS_SCALED       whether scale may differ from 1: it is alpha * *scale_a * *scale_b
//   CTile, STAGES, CTAS, GROUP_M    as in gemm_tensor_memory.cu. A_IS_K_MAJOR and B_IS_K_MAJOR are
//                   true
//
// k counts bytes. Grid, threads and edges are as in gemm_tensor_memory.cu.
#include <tmaasync/tcgen05_scales.cuh>

#include "tensor_memory.cuh"
#include "whole_scale.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

using Kind = ScaledKind<AElement, BElement, BLOCK>;
constexpr int kFactors = OperandA::kSteps * Kind::kFactors;  // of a stage, along K
using AFactors = TmemScales<kM, kFactors>;
using BFactors = TmemScales<kN, kFactors>;
// Two sets of accumulators, if the scale factors of all stages fit next to them.
constexpr int kStageColumns = AFactors::kColumns + BFactors::kColumns;
constexpr int kFactorColumns = STAGES * kStageColumns;
constexpr int kSets = 2 * kN + kFactorColumns <= 512 ? 2 : 1;
using Accumulators = AccumulatorRing<float, kN, kSets, CTAS>;
using Tmem = TmemAllocation<tmem_columns(kSets* kN + kFactorColumns), CTAS>;

struct Stage {
    static constexpr int kBytes =
        ATile::kBytes + BTile::kBytes + AFactorTile::kBytes + BFactorTile::kBytes;

    ATile::Shared a;
    BTile::Shared b;
    AFactorTile::Shared a_factors;
    BFactorTile::Shared b_factors;
};
using SharedMemory = SharedStorage<Stage, Accumulators>;

extern "C" __device__ const int scaled_gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_gemm_tensor_memory(
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
    const Tmem tmem(shared.accumulators.address);
    const u32 columns = tmem.tile<float, kFactorColumns, kSets * kN>().address;

    const auto load = [&](const auto& stage, const OutputTile& tile, int block) {
        using Ring = decltype(shared.ring);
        const int atom = block * AFactors::kAtoms;
        load_operands(stage, a, b, tile, block);
        Ring::load(stage, a_factors, stage->a_factors, {0, atom, tile.m / 128});
        Ring::load(stage, b_factors, stage->b_factors, {0, atom, tile.n / 128});
    };
    // Each stage has columns of its own: the mma that read them have completed when it is refilled,
    // and the fence orders the copies after that. The atoms of B begin at a multiple of 128
    // columns.
    const auto multiply = [&](const auto& d, const auto& stage, const OutputTile& tile) {
        const AFactors of_a{columns + stage.index() * kStageColumns};
        const BFactors of_b{of_a.address + AFactors::kColumns};
        tcgen05_fence_after_thread_sync();
        of_a.copy_from<CTAS>(stage->a_factors);
        of_b.copy_from<CTAS>(stage->b_factors);
        tcgen05_scaled_mma<OperandA, OperandB, AElement, BElement, BLOCK, CTAS>(
            d, stage->a, stage->b, of_a, of_b.from_row(tile.n % 128), stage.iteration() > 0
        );
    };
    const auto store = [&](auto& output, auto& accumulators, const OutputTile& tile, int) {
        if constexpr (IS_SCALED) {
            const float scale = whole_scale(alpha, scale_a, scale_b);
            output.store(accumulators, c, tile, [=](float value, int, int) {
                return value * scale;
            });
        } else {
            output.store(accumulators, c, tile);
        }
    };
    run_roles(
        shared, tmem.tile<float, kN>(), MatrixTiles(m, n, k), load, multiply, store, a, b,
        a_factors, b_factors, c
    );
}
