// Grouped GEMM (MoE) on Blackwell's tensor memory: C[rows of a group, N] = A[the same rows, K]
// B[group, K, N], with the groups and edges of grouped_gemm.cu. Compiled and emulated, not run on a
// chip.
//
//   BTile           (1, ...) one of the matrices
//   CTile           RaggedTensorMap of C, with the tile of gemm_tensor_memory.cu
//   ATile, STAGES, CTAS, GROUP_M, A_IS_K_MAJOR, B_IS_K_MAJOR    as in gemm_tensor_memory.cu.
//                   A_IS_K_MAJOR is true
//
// Grid and threads are as in gemm_tensor_memory.cu. In a pair of CTAs the rows of one may lie
// beyond the group, whose map of C drops them. `broken_group` is as in grouped_gemm.cu.
#include "group_tiles_tensor_memory.cuh"
#include "unscaled_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int grouped_gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) grouped_gemm_tensor_memory(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    const i32* ends,
    int count,
    int total_rows,
    int n,
    int k,
    i32* broken_group
) {
    const GroupTiles tiles{{ends, count, total_rows}, n, count_tiles(k, kK), broken_group};
    multiply_in_tensor_memory(
        dynamic_shared<SharedMemory>(), tiles,
        [&](const auto& stage, const GroupTile& tile, int block) {
            load_operands(stage, a, b, in_arrays(tile), block);
        },
        [&](auto& output, auto& accumulators, const GroupTile& tile, int) {
            output.store(accumulators, c, tile);
        },
        a, b, c
    );
}
