// Block-scaled FP8 GEMM: C[M, N] = A[M, K] B[K, N] of operands with a scale for every 128 elements
// along K. The tensor cores accumulate 128 elements of K; CUDA cores scale these partial sums and
// promote them into fp32 accumulators (DeepSeek-V3's fine-grained FP8, DeepGEMM).
//
//   ATile, BTile    operand tiles, 128 deep, 128-byte swizzle, K contiguous
//   AScaleTile      of [K / 128, M]: 1 by the rows of a CTA tile
//   BScaleTile      of [K / 128, N]: 1 by BLOCK_N; or, where a scale serves 128 columns, 16 bytes
//                   along the contiguous side of [K / 128, N / 128] or of its transpose, and in
//                   the transpose a row for every 128 columns of a CTA tile
//   B_SCALE_COLUMNS    columns that a scale of B serves: 1 or 128
//   B_SCALES_ARE_K_MAJOR    whether the scales of B lie transposed; of 128 columns only
//   CTile, CONSUMERS, BLOCK_N, STAGES, CLUSTER, GROUP_M    as in gemm.cu; ROWS is 64
//
// Grid, threads and edges as in gemm.cu. Beyond the arrays elements and scales are zero.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "mainloop.cuh"

using namespace tmaasync;

using Operands = OperandPair<WgmmaOperand<ATile, Major::kK>, WgmmaOperand<BTile, Major::kK>>;

// The scales of one stage.
struct StageScales {
    typename AScaleTile::Shared a;
    typename BScaleTile::Shared b;
};

using ScaledSharedMemory = SharedStorage<StageScales>;

constexpr int kScaleBlock = 128;
constexpr bool kScalesEveryColumn = B_SCALE_COLUMNS == 1;
constexpr int kScalesPerLoad = 4;  // 16 bytes, the least that TMA loads

// Columns of one MMA: partial sums of all columns of the widest CTA tile would not fit the
// registers in addition to the accumulators.
constexpr int kMmaColumns = BLOCK_N < kScaleBlock ? BLOCK_N : kScaleBlock;
constexpr int kMmas = BLOCK_N / kMmaColumns;
constexpr int kPartialSums = kMmaColumns / 2;

static_assert(kRowBlocks == 1, "a consumer has the rows of one instruction");
static_assert(kBlockK == kScaleBlock, "a stage has the depth that a scale serves");
static_assert(kScaleBlock % kMmaColumns == 0, "the columns of an MMA share a scale");
static_assert(AScaleTile::side(1) == kBlockM, "a scale for every row");

extern "C" __device__ const int scaled_gemm_shared_bytes = sizeof(ScaledSharedMemory);

constexpr u32 kScaledStageBytes = Stage::kBytes + AScaleTile::kBytes + BScaleTile::kBytes;

// --- producer ------------------------------------------------------------------------------------

// Where the load of B's scales starts; of 128 columns, at the multiple of 16 bytes below.
__device__ Coordinates<2> b_scales_at(int n, int block) {
    const int column = n / B_SCALE_COLUMNS;
    if constexpr (kScalesEveryColumn) {
        return {column, block};
    } else if constexpr (B_SCALES_ARE_K_MAJOR) {
        return {block / kScalesPerLoad * kScalesPerLoad, column};
    } else {
        return {column / kScalesPerLoad * kScalesPerLoad, block};
    }
}

__device__ void load_tiles(
    ScaledSharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const AScaleTile& a_scales,
    const BScaleTile& b_scales,
    TileScheduler scheduler
) {
    auto producer = shared.ring.producer();
    for (; !scheduler.done(); scheduler.step()) {
        const auto tile = scheduler.tile();
        for (int block = 0; block < scheduler.k_blocks; ++block) {
            const auto stage = producer.acquire(kScaledStageBytes);
            auto& scales = shared.ring.side[stage.index()];
            auto& full = stage.full();
            a.async_copy(stage->a, full, {block * kBlockK, tile.m});
            load_operand<Cluster::kM>(stage, stage->b, b, {block * kBlockK, tile.n});
            a_scales.async_copy(scales.a, full, {tile.m, block});
            b_scales.async_copy(scales.b, full, b_scales_at(tile.n, block));
        }
    }
}

// --- main loop -----------------------------------------------------------------------------------

// The scales of a thread's two rows.
struct RowScales {
    float upper;
    float lower;
};

__device__ RowScales row_scales(const typename AScaleTile::Shared& scales, int consumer) {
    const int row = consumer * ROWS + accumulator_row(thread_in_warpgroup(), 0);
    return {scales.data()[row], scales.data()[row + 8]};
}

// The scale of the columns of one MMA, of a tile that starts at column n.
__device__ float column_scale(
    const typename BScaleTile::Shared& scales, int mma, int n, int block
) {
    if constexpr (B_SCALES_ARE_K_MAJOR) {
        return scales.data()[mma * kScalesPerLoad + block % kScalesPerLoad];
    } else {
        return scales.data()[n / kScaleBlock % kScalesPerLoad + mma];
    }
}

// accumulators += rows * column * partial sums, for the columns of one MMA.
__device__ void promote(
    float* accumulators, const float (&partial)[kPartialSums], RowScales rows, float column
) {
    const float upper = rows.upper * column, lower = rows.lower * column;
#pragma unroll
    for (int i = 0; i < kPartialSums; i += 4) {
        accumulators[i] += upper * partial[i];
        accumulators[i + 1] += upper * partial[i + 1];
        accumulators[i + 2] += lower * partial[i + 2];
        accumulators[i + 3] += lower * partial[i + 3];
    }
}

// The same where every column has a scale.
__device__ void promote(
    float* accumulators, const float (&partial)[kPartialSums], RowScales rows, const float* columns
) {
#pragma unroll
    for (int i = 0; i < kPartialSums; i += 4) {
        const int column = accumulator_column(thread_in_warpgroup(), i);
        const float2 scale = *reinterpret_cast<const float2*>(columns + column);
        accumulators[i] += rows.upper * scale.x * partial[i];
        accumulators[i + 1] += rows.upper * scale.y * partial[i + 1];
        accumulators[i + 2] += rows.lower * scale.x * partial[i + 2];
        accumulators[i + 3] += rows.lower * scale.y * partial[i + 3];
    }
}

__device__ void issue_mma(float (&partial)[kPartialSums], u64 a, u64 b) {
    wgmma_fence_operands(partial);
    wgmma_fence();
    wgmma_tile<Operands::A, Operands::B>(partial, a, b, false);
    wgmma_commit_group();
}

__device__ void wait_for_mma(float (&partial)[kPartialSums]) {
    wgmma_wait_group<0>();
    wgmma_fence_operands(partial);
}

// Releases a stage that the warp has read. Unlike wgmma's reads, the reads of the scales have to
// be ordered by the arrival, at this CTA's barrier alone: its own producer loads them.
__device__ void release_scaled_stage(ScaledSharedMemory& shared, u32 stage) {
    __syncwarp();
    const u32 rank = CLUSTER == 1 ? 0 : block_rank_in_cluster();
    const u32 lane = lane_index();
    if (lane == rank) shared.ring.empty[stage].arrive();
    if (lane != rank && lane < CLUSTER) shared.ring.empty[stage].arrive_cluster_relaxed(lane);
}

__device__ void multiply_scaled_tile(
    ScaledSharedMemory& shared,
    StageState& state,
    Accumulators& accumulators,
    int consumer,
    int k_blocks,
    int n
) {
    for (int block = 0; block < k_blocks; ++block, state.step()) {
        auto& stage = shared.ring.stages[state.index];
        auto& scales = shared.ring.side[state.index];
        const u64 a = Operands::A::descriptor(stage.a, consumer * ROWS);
        // Wait until the operands and scales of this stage have landed.
        shared.ring.consumer_wait(state);
#pragma unroll
        for (int mma = 0; mma < kMmas; ++mma) {
            const int column = mma * kMmaColumns;
            const bool is_last = mma == kMmas - 1;
            float* promoted = accumulators[0] + column / 2;
            float partial[kPartialSums];
            issue_mma(partial, a, Operands::B::descriptor(stage.b, column));
            // Read the scales while the tensor cores work.
            const RowScales rows = row_scales(scales.a, consumer);
            if constexpr (kScalesEveryColumn) {
                wait_for_mma(partial);
                promote(promoted, partial, rows, scales.b.data() + column);
                if (is_last) release_scaled_stage(shared, state.index);
            } else {
                const float scale = column_scale(scales.b, mma, n, block);
                wait_for_mma(partial);
                // Release the stage first: it is loaded again during the promotion.
                if (is_last) release_scaled_stage(shared, state.index);
                promote(promoted, partial, rows, scale);
            }
        }
    }
}

__device__ void multiply_scaled_tiles(
    ScaledSharedMemory& shared, const CTile& c, TileScheduler scheduler, int consumer
) {
    auto state = StageState::for_consumer();
    u32 chunks = 0;
    for (; !scheduler.done(); scheduler.step()) {
        const auto tile = scheduler.tile();
        Accumulators accumulators = {};
        multiply_scaled_tile(shared, state, accumulators, consumer, scheduler.k_blocks, tile.n);
        store_tile(shared, chunks, accumulators, IdentityEpilogue{}, c, consumer, tile);
    }
    wait_for_stores();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) scaled_gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ AScaleTile a_scales,
    const __grid_constant__ BScaleTile b_scales,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k
) {
    const TileScheduler scheduler(m, n, k);
    auto& shared = dynamic_shared<ScaledSharedMemory>();
    Roles::run(
        shared, [&] { load_tiles(shared, a, b, a_scales, b_scales, scheduler); },
        [&](int consumer) { multiply_scaled_tiles(shared, c, scheduler, consumer); }, a, b,
        a_scales, b_scales, c
    );
}
