// Implicit GEMM convolution on Blackwell's tensor memory, with the images, filters and epilogue of
// conv2d.cu. Compiled and emulated, not run on a chip.
//
//   Images          im2col tile of the images: 128 pixels by 64 columns, a box has all pixels
//   ATile           Images::Matrix
//   BTile           filters [K, R, S, C]; a box has all filters of a CTA and one tap
//   FOLDED, FILTER_OFFSET, Bias, BIAS, ACTIVATION    as in conv2d.cu
//   CTile, STAGES, CTAS, GROUP_M    as in gemm_tensor_memory.cu. A_IS_K_MAJOR and B_IS_K_MAJOR are
//                   true, and STORES_PARTIALS is false
//
// Grid, threads and edges are as in gemm_tensor_memory.cu.
#include <tmaasync/activation.cuh>
#include <tmaasync/im2col.cuh>

#include "bias_side.cuh"
#include "filter_chunks.cuh"
#include "unscaled_tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

extern "C" __device__ const int conv2d_tensor_memory_shared_bytes = sizeof(SharedMemory);

static_assert(Images::kPixels == kM, "a box has all pixels");
static_assert(BTile::boxes(0) == 1, "a box has all filters of a CTA");

// `m` output pixels, `k` filters, `columns` of the patch matrix: taps times padded channels.
extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) conv2d_tensor_memory(
    const __grid_constant__ Images images,
    const __grid_constant__ BTile filters,
    const __grid_constant__ CTile out,
    const Bias* bias,
    int m,
    int k,
    int columns
) {
    typename Images::Column column;  // of the producer
    multiply_in_tensor_memory(
        dynamic_shared<SharedMemory>(), MatrixTiles(m, k, columns),
        [&](const auto& stage, const OutputTile& tile, int block) {
            const int n = first_column_of_b(tile);
            if (block == 0) column = images.column({0, tile.m});
#pragma unroll
            for (int chunk = 0; chunk < kChunksPerStage; ++chunk, images.step(column)) {
                images.async_copy_column<CTAS>(stage->a, stage.full(), column, chunk);
                const auto at = filters_at(column, n);
                if constexpr (CTAS == 2) {
                    void* box = stage->b.bytes + chunk * BTile::kBoxBytes;
                    tma_load_2sm(filters.map, stage.full(), box, at);
                } else {
                    filters.async_copy_box(stage->b, stage.full(), at, chunk);
                }
            }
        },
        [&](auto& output, auto& accumulators, const OutputTile& tile, int) {
            output.store(accumulators, out, tile, [&](float value, int, int filter) {
                if constexpr (kBiasSide != BiasSide::kNone) value += bias_at(bias, filter, k);
                return activated<static_cast<Activation>(ACTIVATION)>(value);
            });
        },
        images, filters, out
    );
}
