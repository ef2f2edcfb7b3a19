#pragma once

// The main loop with block scales. scaled_gemm_tensor_memory.cu explains tiles and constants.
#include <tmaasync/tcgen05_scales.cuh>

#include "block_scaled_stage.cuh"
#include "tensor_memory.cuh"
#include "whole_scale.cuh"

namespace tmaasync::kernels::gemm {

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
using SharedMemory = SharedStorage<Stage, Accumulators>;

// Load the scale factors of a K block, from these rows of atoms on.
template <typename Ring>
__device__ __forceinline__ void load_factors(
    const ProducerStage<Ring>& stage,
    const AFactorTile& a_factors,
    const BFactorTile& b_factors,
    int a_atoms,
    int b_atoms,
    int block
) {
    const int atom = block * AFactors::kAtoms;
    Ring::load(stage, a_factors, stage->a_factors, {0, atom, a_atoms});
    Ring::load(stage, b_factors, stage->b_factors, {0, atom, b_atoms});
}

// Multiply and store the tiles of `work`, times scale_of(tile) if IS_SCALED; the other arguments
// are as in run_roles().
template <typename Work, typename Load, typename ScaleOf, typename... Maps>
__device__ __forceinline__ void multiply_blocks_in_tensor_memory(
    SharedMemory& shared,
    const Work& work,
    const Load& load,
    const ScaleOf& scale_of,
    const CTile& c,
    const Maps&... maps
) {
    const Tmem tmem(shared.accumulators.address);
    const u32 columns = tmem.tile<float, kFactorColumns, kSets * kN>().address;

    // Each stage has columns of its own: the mma that read them have completed when it is refilled,
    // and the fence orders the copies after that. The atoms of B begin at a multiple of 128
    // columns.
    const auto multiply = [&](const auto& d, const auto& stage, const auto& tile) {
        const AFactors of_a{columns + stage.index() * kStageColumns};
        const BFactors of_b{of_a.address + AFactors::kColumns};
        tcgen05_fence_after_thread_sync();
        of_a.copy_from<CTAS>(stage->a_factors, stage->a);
        of_b.copy_from<CTAS>(stage->b_factors, stage->a);
        tcgen05_scaled_mma<OperandA, OperandB, AElement, BElement, BLOCK, CTAS>(
            d, stage->a, stage->b, of_a, of_b.from_row(tile.n % kAtomRows), stage.iteration() > 0
        );
    };
    const auto store = [&](auto& output, auto& accumulators, const auto& tile, int) {
        if constexpr (IS_SCALED) {
            const float scale = scale_of(tile);
            output.store(accumulators, c, tile, [=](float value, int, int) {
                return value * scale;
            });
        } else {
            output.store(accumulators, c, tile);
        }
    };
    run_roles(shared, tmem.tile<float, kN>(), work, load, multiply, store, maps..., c);
}

}  // namespace tmaasync::kernels::gemm
