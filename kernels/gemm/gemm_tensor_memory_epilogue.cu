// GEMM on tensor memory with a fused epilogue: C = activation(scale A B + beta addend + bias),
// computed in fp32 and rounded once. Tiles, constants and grid are as in gemm_tensor_memory.cu; in
// addition:
//
//   Bias, BIAS, ACTIVATION    see epilogue_ops.cuh
//   IS_SCALED       whether scale may differ from 1: it is alpha * *scale_a * *scale_b
//   HAS_ADDEND      whether there is an addend: a matrix like C, which may be C itself
#include <tmaasync/activation.cuh>

#include "bias_side.cuh"
#include "unscaled_tensor_memory.cuh"
#include "whole_scale.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int gemm_tensor_memory_epilogue_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm_tensor_memory_epilogue(
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
    multiply_in_tensor_memory(
        dynamic_shared<SharedMemory>(), MatrixTiles(m, n, k, batches),
        [&](const auto& stage, const OutputTile& tile, int block) {
            load_operands(stage, a, b, tile, block);
        },
        [&](auto& output, auto& accumulators, const OutputTile& tile, int) {
            const float scale = IS_SCALED ? whole_scale(alpha, scale_a, scale_b) : 1.0f;
            const auto finish = [&](float value, float source, int row, int column) {
                if constexpr (IS_SCALED) value *= scale;
                if constexpr (kBiasSide == BiasSide::kColumns) value += bias_at(bias, column, n);
                if constexpr (kBiasSide == BiasSide::kRows) value += bias_at(bias, row, m);
                if constexpr (HAS_ADDEND) value = fmaf(beta, source, value);
                return activated<static_cast<Activation>(ACTIVATION)>(value);
            };
            if constexpr (HAS_ADDEND) {
                output.store_with_source(accumulators, c, addend, tile, finish);
            } else {
                output.store(accumulators, c, tile, [&](float value, int row, int column) {
                    return finish(value, 0, row, column);
                });
            }
        },
        a, b, c, addend
    );
}
