// Block-scaled grouped GEMM (MoE) on Blackwell's tensor memory: C[rows of a group, N] = scale
// A[the same rows, K] B[group, K, N], with the formats of scaled_gemm_tensor_memory.cu and the
// groups of grouped_gemm_tensor_memory.cu. Compiled and emulated, not run on a chip.
//
//   BTile           (1, ...) one of the matrices
//   CTile           RaggedTensorMap of C, with the tile of gemm_tensor_memory.cu
//   IS_SCALED       whether scale may differ from 1: it is alpha * scale_a[group] * scale_b[group]
//
// The other parameters are as in scaled_gemm_tensor_memory.cu.
//
// The factors of A begin a new row of atoms at each group, so that a group has whole atoms of 128
// rows, and so do the factors of B at each matrix. k counts bytes. Grid, threads, edges and
// `broken_group` are as in grouped_gemm_tensor_memory.cu.
#include "block_scaled_tensor_memory.cuh"
#include "group_tiles_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int scaled_grouped_gemm_tensor_memory_shared_bytes =
    sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_grouped_gemm_tensor_memory(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AFactorTile a_factors,
    const __grid_constant__ BFactorTile b_factors,
    const __grid_constant__ CTile c,
    const float* scale_a,
    const float* scale_b,
    float alpha,
    const i32* ends,
    int count,
    int total_rows,
    int n,
    int k,
    i32* broken_group
) {
    const GroupTiles tiles{{ends, count, total_rows}, n, count_tiles(k, kK), broken_group};
    multiply_blocks_in_tensor_memory(
        dynamic_shared<SharedMemory>(), tiles,
        [&](const auto& stage, const GroupTile& tile, int block) {
            const int a_atoms = tile.m_tiles_before + tile.m / kAtomRows;
            const int b_atoms = tile.group * count_tiles(n, kAtomRows) + tile.n / kAtomRows;
            load_operands(stage, a, b, in_arrays(tile), block);
            load_factors(stage, a_factors, b_factors, a_atoms, b_atoms, block);
        },
        [&](const GroupTile& tile) {
            return whole_scale(alpha, of_group(scale_a, tile.group), of_group(scale_b, tile.group));
        },
        c, a, b, a_factors, b_factors
    );
}
