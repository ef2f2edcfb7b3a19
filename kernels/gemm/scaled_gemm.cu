// Block-scaled FP8 GEMM: C[M, N] = A[M, K] B[K, N], whose operands have one scale per 128 elements
// of K. The tensor cores accumulate 128 elements of K; CUDA cores scale these partial sums and
// promote them into fp32 accumulators (DeepSeek-V3's fine-grained FP8, DeepGEMM).
//
//   ATile, BTile    operand tiles, 128 deep, 128-byte swizzle, K contiguous
//   AScaleTile      1 by the rows of a CTA tile, of an array [K / 128, M]
//   BScaleTile      1 by BLOCK_N, of an array [K / 128, N]; or, with one scale per 128 columns, 16
//                   bytes along the contiguous side of [K / 128, N / 128] or its transpose, and in
//                   the transpose one row per 128 columns of a CTA tile
//   B_SCALE_COLUMNS    columns per scale of B: 1 or 128
//   B_SCALES_ARE_K_MAJOR    whether the scales of B are transposed; only for 128 columns
//   CTile, CONSUMERS, BLOCK_N, STAGES, CLUSTER, GROUP_M, C_IS_N_MAJOR    as in gemm.cu; ROWS is 64,
//                   SPLIT_K is 1, and SIDE_BY_SIDE, STORES_PARTIALS and PING_PONG are false
//   EPILOGUE_BUFFERS    staging buffers of a consumer for chunks of its output
//
// Grid, threads and edges are as in gemm.cu. Elements and scales beyond the arrays are zero.
#include "scaled_wgmma.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int scaled_gemm_shared_bytes = sizeof(ScaledSharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AScaleTile a_scales,
    const __grid_constant__ BScaleTile b_scales,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    const TileScheduler schedule({m, n});
    const int k_blocks = count_tiles(k, kBlockK);
    const ScaledOperands operands{b, a_scales, b_scales};
    auto& shared = dynamic_shared<ScaledSharedMemory>();
    const auto consume = [&](int consumer) {
        ScaledEpilogue epilogue(shared.epilogue[consumer], consumer, consumer_row(consumer));
        operands.multiply(
            shared, schedule, k_blocks, consumer,
            [&](auto& accumulators, const auto& tile) { epilogue.store(accumulators, c, tile); }
        );
        epilogue.drain();
    };
    Roles::run(
        shared, [&] { operands.load(shared, part_of_whole(a), schedule, k_blocks, m); }, consume, a,
        b, a_scales, b_scales, c
    );
}
