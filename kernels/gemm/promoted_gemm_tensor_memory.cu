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
#include "float_scales.cuh"
#include "tensor_memory.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

static_assert(kK == kScaleBlock, "a stage has the depth that a scale serves");
static_assert(kN == kScaleBlock, "half of a thread's row is in registers");
static_assert(AScaleTile::side(1) == kM, "a scale for every row");

constexpr int kSets = 512 / kN, kConsumers = 2, kOwnColumns = kN / kConsumers;
using Accumulators = AccumulatorRing<float, kN, kSets, CTAS, 4 * kConsumers>;
using ScaleRing = Ring<StageScales, kSets, ConsumerWarps<4 * kConsumers>>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory : SharedStorage<Stage, Accumulators> {
    ScaleRing scales;

    __device__ void init() {
        SharedStorage<Stage, Accumulators>::init();
        scales.init();
    }
};

extern "C" __device__ const int promoted_gemm_tensor_memory_shared_bytes = sizeof(SharedMemory);

// Add the thread's columns of a stage, from `first` on, to its accumulators, scaled.
__device__ __forceinline__ void promote(
    float (&total)[kOwnColumns],
    AccumulatorConsumer<Accumulators>& accumulators,
    const StageScales& scales,
    int first,
    int n,
    int block
) {
    constexpr int kColumns = 32;
    const float of_row = scales.a.data()[thread_in_warpgroup()];
    const auto of_column = [&](int column) {
        if constexpr (kScalesEveryColumn) return scales.b.data()[column];
        return b_scale(scales, n, 0, block);
    };
    const auto tmem = accumulators.acquire();
#pragma unroll
    for (int column = 0; column < kOwnColumns; column += kColumns) {
        float partial[kColumns];
        tmem.load(partial, first + column);
        tmem_wait_loads();
        if (column + kColumns == kOwnColumns) accumulators.release();
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const float scale = of_row * of_column(first + column + i);
            total[column + i] = fmaf(scale, partial[i], total[column + i]);
        }
    }
}

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
    auto& shared = dynamic_shared<SharedMemory>();
    const TmemAllocation<Accumulators::kAllColumns, CTAS> tmem(shared.accumulators.address);
    auto filled = shared.scales.producer();
    auto scales = shared.scales.consumer();

    const auto load = [&](const auto& stage, const OutputTile& tile, int block) {
        load_operands(stage, a, b, tile, block);
        const auto of_block = filled.acquire();
        a_scales.async_copy(of_block->a, of_block.full(), {tile.m, block});
        b_scales.async_copy(of_block->b, of_block.full(), b_scales_at(tile.n, block));
    };
    const auto multiply = [](const auto& d, const auto& stage, const OutputTile&) {
        tcgen05_mma<OperandA, OperandB, CTAS>(d, stage->a, stage->b, false);
    };
    const auto store = [&](auto& output, auto& accumulators, const OutputTile& tile, int consumer) {
        const int first = consumer * kOwnColumns;
        float total[kOwnColumns] = {};
        for (const auto& stage : scales.consume(count_tiles(k, kK))) {
            promote(total, accumulators, *stage, first, tile.n, stage.iteration());
        }
        output.store_row(total, c, OutputTile{tile.m, tile.n + first, tile.batch});
    };
    run_roles<true>(
        shared, tmem.tile<float, kN>(), MatrixTiles(m, n, k), load, multiply, store, a, b, a_scales,
        b_scales, c
    );
}
