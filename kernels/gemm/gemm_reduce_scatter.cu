// GEMM + reduce-scatter: rank r multiplies its own A_r[M, K_r] B_r[K_r, N], and receives the rows
// of its shard of the sum over all ranks (reduce_scatter.cuh). The own shard comes last.
#include "own_output.cuh"
#include "unscaled_wgmma.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int gemm_reduce_scatter_shared_bytes =
    sizeof(ScatterMemory<UnscaledOperands>);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm_reduce_scatter(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
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
        a, UnscaledOperands{b}, OwnOutput{c},
        {sent, received_0, received_1, signals, shards, rounds, matrix_elements, row_elements, m, k,
         step_rows},
        a, b, c
    );
}
