// GEMM with a fused epilogue: C = activation(scale A B + beta addend + bias), computed in fp32 and
// rounded once. Tiles, constants and grid as in gemm.cu, and
//
//   Bias, BIAS, ACTIVATION    see epilogue_ops.cuh
//   IS_SCALED       whether scale is not 1: it is alpha times what scale_a and scale_b point to
//   HAS_ADDEND      whether there is an addend: a matrix like C, and it may be C itself
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "addend.cuh"
#include "epilogue_ops.cuh"
#include "mainloop.cuh"
#include "producer.cuh"
#include "split_k.cuh"

using namespace tmaasync;

extern "C" __device__ const int gemm_epilogue_shared_bytes = sizeof(SharedMemory);

// The pointers may be null, for a scale of 1.
__device__ float whole_scale(float alpha, const float* scale_a, const float* scale_b) {
    return alpha * (scale_a == nullptr ? 1.0f : *scale_a) * (scale_b == nullptr ? 1.0f : *scale_b);
}

struct FusedEpilogue {
    SharedMemory& shared;
    const Bias* bias;
    float scale;
    float beta;
    int m;
    int n;
    int consumer;

    __device__ void apply(
        OutputSlice& accumulators, StageState& state, const OutputTile& tile
    ) const {
        if constexpr (IS_SCALED) scale_accumulators(accumulators, scale);
        if constexpr (kBiasSide == BiasSide::kColumns) {
            add_column_bias<!HAS_ADDEND>(accumulators, bias, tile.n, n);
        }
        if constexpr (kBiasSide == BiasSide::kRows) {
            add_row_bias(accumulators, bias, tile.m + consumer * ROWS, m);
        }
        if constexpr (HAS_ADDEND) add_addend(shared, state, accumulators, consumer, beta);
    }
    __device__ void apply_chunk(float* accumulators) const { activate_chunk(accumulators); }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) gemm_epilogue(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const __grid_constant__ CTile addend,
    const Bias* bias,
    const float* scale_a,
    const float* scale_b,
    float alpha,
    float beta,
    int m,
    int n,
    int k,
    int batches
) {
    const TileScheduler scheduler(m, n, k, CTile::kRank == 3 ? batches : 1);
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run(
        shared,
        [&] {
            load_tiles(
                shared, a, b, scheduler, [&](OperandProducer& producer, const OutputTile& tile) {
                    if constexpr (HAS_ADDEND) load_addend(producer, addend, tile);
                }
            );
        },
        [&](int consumer) {
            wait_for_previous_grids();
            const float scale = IS_SCALED ? whole_scale(alpha, scale_a, scale_b) : 1.0f;
            const FusedEpilogue epilogue{shared, bias, scale, beta, m, n, consumer};
            multiply_tiles_or_split_k<Operands>(shared, c, scheduler, consumer, epilogue);
        },
        a, b, c
    );
}
