// Block-scaled GEMM on Blackwell's tensor memory: C[M, N] = scale A[M, K] B[K, N], whose operands
// have a scale factor for every 32 elements of K (MXFP8, MXFP4) or every 16 (NVFP4). The tensor
// cores apply the factors. Compiled and emulated, not run on a chip.
//
//   ATile, BTile    operand tiles of bytes, 128 deep, 128-byte swizzle, K contiguous;
//                   A has 128 rows
//   AElement, BElement
//                   what the bytes hold; float4_e2m1 is packed, two in a byte
//   BLOCK           elements of K with one scale factor: 32 of type UE8M0, or 16 of type UE4M3
//   AFactorTile, BFactorTile
//                   the factors of a stage of A, and of all CTAS of B: atoms of 512 bytes,
//                   [rows / 128, factors / 4, 128 words]
//   IS_SCALED       whether scale may differ from 1: it is alpha * *scale_a * *scale_b
//   CTile, STAGES, CTAS, GROUP_M
//                   as in gemm_tensor_memory.cu
//
// A_IS_K_MAJOR and B_IS_K_MAJOR are true.
// k counts bytes. Grid, threads and edges are as in gemm_tensor_memory.cu.
#include "block_scaled_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int scaled_gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_gemm_tensor_memory(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AFactorTile a_factors,
    const __grid_constant__ BFactorTile b_factors,
    const __grid_constant__ CTile c,
    const float* scale_a,
    const float* scale_b,
    float alpha,
    int m,
    int n,
    int k
) {
    multiply_blocks_in_tensor_memory(
        dynamic_shared<SharedMemory>(), MatrixTiles(m, n, k),
        [&](const auto& stage, const OutputTile& tile, int block) {
            const int a_atoms = tile.m / kAtomRows, b_atoms = tile.n / kAtomRows;
            load_operands(stage, a, b, tile, block);
            load_factors(stage, a_factors, b_factors, a_atoms, b_atoms, block);
        },
        [&](const OutputTile&) { return whole_scale(alpha, scale_a, scale_b); }, c, a, b, a_factors,
        b_factors
    );
}
