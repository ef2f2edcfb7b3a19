// Grouped FP8 GEMM (MoE) on Blackwell's tensor memory with one float32 scale per 128 elements of K:
// C[rows of a group, N] = A[the same rows, K] B[group, K, N], with the main loop of
// promoted_gemm_tensor_memory.cu and the groups of grouped_gemm_tensor_memory.cu. Compiled and
// emulated, not run on a chip.
//
//   BTile           (1, ...) one of the matrices
//   AScaleTile      1 by 132 of an array [K / 128, T]: the 128 rows of a CTA, from a multiple of 16
//                   bytes on
//   BScaleTile      (1, ...) the scales of one of the matrices
//   CTile           RaggedTensorMap of C, with the tile of gemm_tensor_memory.cu
//
// The other parameters are as in promoted_gemm_tensor_memory.cu, and `broken_group` is as in
// grouped_gemm_tensor_memory.cu.
#include "group_tiles_tensor_memory.cuh"
#include "promoted_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

static_assert(AScaleTile::side(1) == kM + kScalesPerLoad, "a scale for every row, from any row on");

extern "C" __device__ const int promoted_grouped_gemm_tensor_memory_shared_bytes =
    sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(RolesOf<kConsumers>::kThreads, 1)
promoted_grouped_gemm_tensor_memory(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AScaleTile a_scales,
    const __grid_constant__ BScaleTile b_scales,
    const __grid_constant__ CTile c,
    const i32* ends,
    int count,
    int total_rows,
    int n,
    int k,
    i32* broken_group
) {
    const GroupTiles tiles{{ends, count, total_rows}, n, count_tiles(k, kK), broken_group};
    multiply_and_promote(
        dynamic_shared<SharedMemory>(), tiles,
        [](const GroupTile& tile) { return in_arrays(tile); }, a, b, a_scales, b_scales, c
    );
}
