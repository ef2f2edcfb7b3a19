#pragma once

// The block-scaled main loop by warps. scaled_gemm_warps.cu explains tiles and constants.
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/epilogue.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/warp_scaled_mma.cuh>

#include "block_scaled_stage.cuh"
#include "whole_scale.cuh"

namespace tmaasync::kernels::gemm {

using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;
using Cluster = ClusterShape<1>;
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

// Multiply a stage by the consumer's 64 rows from `row` on.
template <typename Tile>
__device__ __forceinline__ void multiply_stage(
    float (&accumulators)[BLOCK_N / 2], const Stage& stage, const Tile& tile, int row
) {
    const u32 factor_row = tile.m % kAtomRows + row + thread_in_warpgroup() / 32 * 16;
    const auto scales = [&](int atom) {
        return Scales(
            stage.a_factors.data() + atom * kAtomWords, stage.b_factors.data() + atom * kAtomWords,
            factor_row, tile.n % kAtomRows
        );
    };
    const WarpOperand<OperandA> a(OperandA::start_address(stage.a, row));
    const WarpOperand<OperandB> b(OperandB::start_address(stage.b, 0));
    warp_scaled_mma_steps<AElement, BElement, BLOCK>(accumulators, a, b, scales);
}

// Multiply and store a consumer's rows of the tiles of `schedule`, times scale_of(tile) if
// IS_SCALED.
template <typename Schedule, typename ScaleOf>
__device__ __forceinline__ void multiply_tiles(
    SharedMemory& shared,
    const Schedule& schedule,
    int k_blocks,
    const ScaleOf& scale_of,
    const CTile& c,
    int consumer
) {
    const int row = 64 * consumer;
    auto stages = shared.ring.consumer();
    Output output(shared.output[consumer], consumer, row);
    for (const auto tile : schedule) {
        float accumulators[1][BLOCK_N / 2] = {};
        for (const auto& stage : stages.consume(k_blocks)) {
            multiply_stage(accumulators[0], *stage, tile, row);
        }
        if constexpr (IS_SCALED) {
            const float scale = scale_of(tile);
            output.store(accumulators, c, tile, [=](float value, int, int) {
                return value * scale;
            });
        } else {
            output.store(accumulators, c, tile);
        }
    }
    output.drain();
}

}  // namespace tmaasync::kernels::gemm
