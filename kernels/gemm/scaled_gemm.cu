// Block-scaled FP8 GEMM: C[M, N] = A[M, K] B[K, N], whose operands have one scale per 128 elements
// of K. The tensor cores accumulate 128 elements of K; CUDA cores scale these partial sums and
// promote them into fp32 accumulators (DeepSeek-V3's fine-grained FP8, DeepGEMM).
//
//   ATile, BTile    operand tiles, 128 deep, 128-byte swizzle, K contiguous
//   AScaleTile      1 by the rows of a CTA tile, of an array [K / 128, M]
//   BScaleTile      1 by BLOCK_N, of an array [K / 128, N]; or, with one scale per 128 columns, 16
//                   bytes along the contiguous side of [K / 128, N / 128] or its transpose, and in
//                   the transpose one row per 128 columns of a CTA tile
//   B_SCALE_COLUMNS    columns per scale of B: 1 or 128
//   B_SCALES_ARE_K_MAJOR    whether the scales of B are transposed; only for 128 columns
//   CTile, CONSUMERS, BLOCK_N, STAGES, CLUSTER, GROUP_M, C_IS_N_MAJOR    as in gemm.cu; ROWS is 64,
//                   SPLIT_K is 1, and SIDE_BY_SIDE, STORES_PARTIALS and PING_PONG are false
//   EPILOGUE_BUFFERS    staging buffers of a consumer for chunks of its output
//
// Grid, threads and edges are as in gemm.cu. Elements and scales beyond the arrays are zero.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "config.cuh"
#include "float_scales.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::gemm;

// Convert all chunks of a tile at once if each has a buffer; else half of the buffers at once.
constexpr int kChunks = BLOCK_N / OutputChunk<CTile, kOutputMajor>::kColumns;
constexpr int kChunksAtOnce = kChunks <= EPILOGUE_BUFFERS ? kChunks : EPILOGUE_BUFFERS / 2;
using ScaledEpilogue = Epilogue<CTile, BLOCK_N, kOutputMajor, EPILOGUE_BUFFERS, kChunksAtOnce>;

using ScaledSharedMemory = SharedStorage<StageScales, ScaledEpilogue>;

using ScaledLoop =
    ScaledMainLoop<WgmmaOperand<ATile, Major::kK>, WgmmaOperand<BTile, Major::kK>, BLOCK_N>;

static_assert(STAGES >= 2, "the next stage is waited for before a stage is released");
static_assert(!SIDE_BY_SIDE, "the CTAs of a cluster share the columns of B, which they multicast");
static_assert(SPLIT_K == 1 && !STORES_PARTIALS && !PING_PONG, "a CTA has whole tiles");
static_assert(ROWS == 64, "a consumer has the rows of one instruction");
static_assert(kBlockK == kScaleBlock, "a stage has the depth that a scale serves");
static_assert(kScaleBlock % ScaledLoop::kMmaColumns == 0, "the columns of an MMA share a scale");
static_assert(AScaleTile::side(1) == kBlockM, "a scale for every row");

extern "C" __device__ const int scaled_gemm_shared_bytes = sizeof(ScaledSharedMemory);

constexpr u32 kScaledStageBytes = Stage::kBytes + AScaleTile::kBytes + BScaleTile::kBytes;

// --- producer ------------------------------------------------------------------------------------

__device__ void load_tiles(
    ScaledSharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const AScaleTile& a_scales,
    const BScaleTile& b_scales,
    const TileScheduler& schedule,
    int k_blocks
) {
    auto producer = shared.ring.producer();
    for (const auto tile : schedule) {
        for (int block = 0; block < k_blocks; ++block) {
            const auto stage = producer.acquire(kScaledStageBytes);
            auto& scales = shared.ring.side[stage.index()];
            auto& full = stage.full();
            a.async_copy(stage->a, full, {block * kBlockK, tile.m});
            stage.async_multicast_load(b, stage->b, {block * kBlockK, tile.n});
            a_scales.async_copy(scales.a, full, {tile.m, block});
            b_scales.async_copy(scales.b, full, b_scales_at(tile.n, block));
        }
    }
}

// --- main loop -----------------------------------------------------------------------------------

// A thread's scales of a stage, for a tile that starts at column n.
struct Scales {
    int row;  // of the CTA tile, the first for which the thread has accumulators
    int n;

    __device__ RowScales rows(const StageScales& scales) const {
        return {scales.a.data()[row], scales.a.data()[row + 8]};
    }

    __device__ auto columns(const StageScales& scales, int column, int block) const {
        if constexpr (kScalesEveryColumn) {
            return scales.b.data() + column;
        } else {
            return b_scale(scales, n, column, block);
        }
    }
};

__device__ void multiply_scaled_tiles(
    ScaledSharedMemory& shared,
    const CTile& c,
    const TileScheduler& schedule,
    int k_blocks,
    int consumer
) {
    auto stages = shared.ring.consumer<Proxy::kMixed>();
    ScaledEpilogue epilogue(shared.epilogue[consumer], consumer, consumer_row(consumer));
    int row = consumer * ROWS + accumulator_row(thread_in_warpgroup(), 0);
    // Keep it in a register. Computed anew for every stage, it costs 8 instructions, 1 to 2 % of
    // the time (DeepGEMM's shapes, H100, 2026-11-24: docs/decisions/fp8.md).
    ptx::wgmma_fence_operand(row);
    for (const auto tile : schedule) {
        ScaledLoop::Accumulators accumulators;
        ScaledLoop::multiply(stages, accumulators, k_blocks, consumer * ROWS, Scales{row, tile.n});
        epilogue.store(accumulators, c, tile);
    }
    epilogue.drain();
}

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) scaled_gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AScaleTile a_scales,
    const __grid_constant__ BScaleTile b_scales,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    const TileScheduler schedule({m, n});
    const int k_blocks = count_tiles(k, kBlockK);
    auto& shared = dynamic_shared<ScaledSharedMemory>();
    Roles::run(
        shared, [&] { load_tiles(shared, a, b, a_scales, b_scales, schedule, k_blocks); },
        [&](int consumer) { multiply_scaled_tiles(shared, c, schedule, k_blocks, consumer); }, a, b,
        a_scales, b_scales, c
    );
}
