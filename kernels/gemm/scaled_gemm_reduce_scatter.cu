// Block-scaled FP8 GEMM + reduce-scatter: gemm_reduce_scatter.cu with the operands of
// scaled_gemm.cu. The scales of A_r are [K_r / 128, M]; every rank has its own.
#include "own_output.cuh"
#include "scaled_wgmma.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int scaled_gemm_reduce_scatter_shared_bytes =
    sizeof(ScatterMemory<ScaledOperands>);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_gemm_reduce_scatter(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AScaleTile a_scales,
    const __grid_constant__ BScaleTile b_scales,
    const __grid_constant__ CTile c,
    const TMATensorTileArray<CTile> sent,
    const Element* received_0,
    const Element* received_1,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    i64 matrix_elements,
    i64 row_elements,
    int m,
    int k,
    int step_rows
) {
    multiply_and_scatter(
        a, ScaledOperands{b, a_scales, b_scales}, OwnOutput{c},
        {sent, received_0, received_1, signals, shards, rounds, matrix_elements, row_elements, m, k,
         step_rows},
        a, b, a_scales, b_scales, c
    );
}
