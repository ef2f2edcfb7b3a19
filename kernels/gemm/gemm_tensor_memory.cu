// GEMM on Blackwell's tensor memory: C[M, N] = A[M, K] B[K, N], or a batch of GEMMs. It accumulates
// in fp32, for integers in int32. A thread loads, a thread multiplies, and a warpgroup stores the
// tile before. Compiled and emulated, not run on a chip.
//
//   ATile, BTile    operand tiles, 128 bytes of K deep, 128-byte swizzle. A has 128 rows
//   CTile           128 rows of the output by 128, 64 or 32 bytes of columns
//   STAGES          pipeline stages
//   CTAS            1, or 2: the CTAs of a cluster multiply as a pair, and each has half of BTile's
//                   columns
//   GROUP_M         clusters along M before the next column of tiles: the L2 swizzle
//   STORES_PARTIALS whether K is split over the grid, as in gemm.cu
//   A_IS_K_MAJOR, B_IS_K_MAJOR    the contiguous side; if false M and N
//
// Grid: any number of clusters of CTAS CTAs, of 256 threads. At the edges of the arrays TMA fills
// loads with zeros and clips stores.
#include "unscaled_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm_tensor_memory(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k,
    int batches
) {
    multiply_in_tensor_memory(
        dynamic_shared<SharedMemory>(), MatrixTiles(m, n, k, batches),
        [&](const auto& stage, const OutputTile& tile, int block) {
            load_operands(stage, a, b, tile, block);
        },
        [&](auto& output, auto& accumulators, const OutputTile& tile, int) {
            output.store(accumulators, c, tile);
        },
        a, b, c
    );
}
