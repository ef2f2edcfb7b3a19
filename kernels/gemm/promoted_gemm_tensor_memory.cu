// FP8 GEMM on Blackwell's tensor memory: C[M, N] = A[M, K] B[K, N], whose operands have one float32
// scale per 128 elements of K. The tensor cores multiply 128 elements of K into a set of
// accumulators; the epilogue warps scale these partial sums and promote them into fp32 accumulators
// in registers (DeepSeek-V3's fine-grained FP8, DeepGEMM). Compiled and emulated, not run on a
// chip.
//
//   ATile, BTile    operand tiles, 128 deep, 128-byte swizzle, K contiguous. A has 128 rows, and B
//                   128 columns in all CTAS
//   AScaleTile, BScaleTile, B_SCALE_COLUMNS, B_SCALES_ARE_K_MAJOR    as in scaled_gemm.cu
//   CTile, STAGES, CTAS, GROUP_M    as in gemm_tensor_memory.cu. A_IS_K_MAJOR and B_IS_K_MAJOR are
//                   true
//
// Grid and edges are as in gemm_tensor_memory.cu, with 384 threads: two warpgroups promote and
// store half of the columns each. Elements and scales beyond the arrays are zero.
#include "promoted_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

static_assert(AScaleTile::side(1) == kM, "a scale for every row");

extern "C" __device__ const int promoted_gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(RolesOf<kConsumers>::kThreads, 1)
promoted_gemm_tensor_memory(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AScaleTile a_scales,
    const __grid_constant__ BScaleTile b_scales,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    multiply_and_promote(
        dynamic_shared<SharedMemory>(), MatrixTiles(m, n, k),
        [](const OutputTile& tile) { return tile; }, a, b, a_scales, b_scales, c
    );
}
