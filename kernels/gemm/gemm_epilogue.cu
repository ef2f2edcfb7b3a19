// C = activation(scale A B + beta addend + bias), in fp32 and rounded once: gemm.cu with more work
// on the sums. Tiles, constants and grid as there, and
//
//   Bias, BIAS, ACTIVATION    see epilogue.cuh
//   IS_SCALED       whether scale is not 1: it is alpha times what scale_a and scale_b point to
//   HAS_ADDEND      whether there is one: a matrix like C, and it may be C itself
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "addend.cuh"
#include "epilogue_ops.cuh"
#include "producer.cuh"

using namespace tmaasync;

extern "C" __device__ const int gemm_epilogue_shared_bytes = sizeof(SharedMemory);

// The pointers may be null, for a scale of 1.
__device__ float whole_scale(float alpha, const float* scale_a, const float* scale_b) {
    return alpha * (scale_a == nullptr ? 1.0f : *scale_a) * (scale_b == nullptr ? 1.0f : *scale_b);
}

struct Finish {
    SharedMemory& shared;
    const Bias* bias;
    float scale;
    float beta;
    int m;
    int n;
    int consumer;

    __device__ void tile(Share& sums, Ring& place, const TileWalk::Start& start) const {
        if constexpr (IS_SCALED) scale_sums(sums, scale);
        if constexpr (kBiasSide == BiasSide::kColumns) {
            add_bias<!HAS_ADDEND>(sums, bias, start.n, n);
        }
        if constexpr (kBiasSide == BiasSide::kRows) {
            add_bias_of_rows(sums, bias, start.m + consumer * ROWS, m);
        }
        if constexpr (HAS_ADDEND) add_addend(shared, place, sums, consumer, beta);
    }
    __device__ void chunk(float* sums) const { activate_chunk(sums); }
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
    const TileWalk walk(m, n, k, CTile::kRank == 3 ? batches : 1);
    run_roles(
        [&](SharedMemory& shared) {
            load_tiles(shared, a, b, walk, [&](Ring& place, const TileWalk::Start& start) {
                if constexpr (HAS_ADDEND) load_addend(shared, place, addend, start);
            });
        },
        [&](SharedMemory& shared, int consumer) {
            wait_for_previous_grids();
            const float scale = IS_SCALED ? whole_scale(alpha, scale_a, scale_b) : 1.0f;
            const Finish finish{shared, bias, scale, beta, m, n, consumer};
            multiply_whole_or_split<Operands>(shared, c, walk, consumer, finish);
        },
        a, b, c
    );
}
