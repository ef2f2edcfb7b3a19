// C[M, N] = A[M, K] B[K, N] of fp8 operands whose scales belong to blocks of 128 along K: the
// products of a block are summed by the tensor cores, and the sums are scaled and added in fp32.
//
//   ATile, BTile    operand tiles, 128 deep, 128-byte swizzle, K contiguous
//   AScaleTile      of [K / 128, M]: 1 by the rows of a block
//   BScaleTile      of [K / 128, N]: 1 by BLOCK_N; or, where a scale serves 128 columns, 16 bytes
//                   along the contiguous side of [K / 128, N / 128] or of its transpose, and in
//                   the transpose a row for every 128 columns of a block
//   B_SCALE_COLUMNS    columns that a scale of B serves: 1 or 128
//   B_SCALES_ARE_K_MAJOR    whether the scales of B lie transposed; of 128 columns only
//   CTile, CONSUMERS, BLOCK_N, STAGES, CLUSTER, GROUP_M    as in gemm.cu; ROWS is 64
//
// Grid, threads and edges as in gemm.cu. What lies beyond the arrays is zero, its scale too.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;

struct StageExtras {
    typename AScaleTile::Shared a_scales;
    typename BScaleTile::Shared b_scales;
};

#include "product.cuh"

constexpr int kScaleBlock = 128;
constexpr bool kScalesColumns = B_SCALE_COLUMNS == 1;
constexpr int kScalesPerLoad = 4;  // 16 bytes, the least that TMA loads

// Columns that one turn of the tensor cores sums: a second set of all sums would not fit the
// registers of the widest block.
constexpr int kSliceColumns = BLOCK_N < kScaleBlock ? BLOCK_N : kScaleBlock;
constexpr int kSlices = BLOCK_N / kSliceColumns;
constexpr int kSliceSums = kSliceColumns / 2;

static_assert(kParts == 1, "a group has the rows of one instruction");
static_assert(kBlockK == kScaleBlock, "a stage has the depth that a scale serves");
static_assert(kScaleBlock % kSliceColumns == 0, "the columns of a slice share a scale");
static_assert(AScaleTile::side(1) == kBlockM, "a scale for every row");

extern "C" __device__ const int scaled_gemm_shared_bytes = sizeof(SharedMemory);

constexpr u32 kScaledStageBytes = kStageBytes + AScaleTile::kBytes + BScaleTile::kBytes;

// --- loads ---------------------------------------------------------------------------------------

// Where the load of B's scales starts; of 128 columns, at the multiple of 16 bytes below.
__device__ Coordinates<2> b_scale_start(int n, int block) {
    const int column = n / B_SCALE_COLUMNS;
    if constexpr (kScalesColumns) {
        return {column, block};
    } else if constexpr (B_SCALES_ARE_K_MAJOR) {
        return {block / kScalesPerLoad * kScalesPerLoad, column};
    } else {
        return {column / kScalesPerLoad * kScalesPerLoad, block};
    }
}

__device__ void load_tiles(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const AScaleTile& a_scales,
    const BScaleTile& b_scales,
    TileWalk walk
) {
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        for (int block = 0; block < walk.k_blocks; ++block, place.step()) {
            auto& stage = shared.stages[place.index];
            auto& scales = shared.extras[place.index];
            auto& full = shared.full[place.index];
            // Every consumer of this stage, in every CTA of the cluster, has read it.
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(kScaledStageBytes);
            a.async_copy(stage.a, full, {block * kBlockK, start.m});
            load_operand<kCtasDown>(stage.b, full, b, {block * kBlockK, start.n});
            a_scales.async_copy(scales.a_scales, full, {start.m, block});
            b_scales.async_copy(scales.b_scales, full, b_scale_start(start.n, block));
        }
    }
}

// --- sums ----------------------------------------------------------------------------------------

// Of the two rows of which a thread holds sums.
struct RowScales {
    float upper;
    float lower;
};

__device__ RowScales row_scales(const typename AScaleTile::Shared& scales, int consumer) {
    const int row = consumer * ROWS + accumulator_row(thread_in_warpgroup(), 0);
    return {scales.data()[row], scales.data()[row + 8]};
}

// The scale of a slice of the columns from n on.
__device__ float slice_scale(
    const typename BScaleTile::Shared& scales, int slice, int n, int block
) {
    if constexpr (B_SCALES_ARE_K_MAJOR) {
        return scales.data()[slice * kScalesPerLoad + block % kScalesPerLoad];
    } else {
        return scales.data()[n / kScaleBlock % kScalesPerLoad + slice];
    }
}

// total += scales * sums, of one slice.
__device__ void add_scaled(
    float* total, const float (&sums)[kSliceSums], RowScales rows, float column
) {
    const float upper = rows.upper * column, lower = rows.lower * column;
#pragma unroll
    for (int i = 0; i < kSliceSums; i += 4) {
        total[i] += upper * sums[i];
        total[i + 1] += upper * sums[i + 1];
        total[i + 2] += lower * sums[i + 2];
        total[i + 3] += lower * sums[i + 3];
    }
}

// The same where every column has a scale.
__device__ void add_scaled_columns(
    float* total, const float (&sums)[kSliceSums], RowScales rows, const float* columns
) {
#pragma unroll
    for (int i = 0; i < kSliceSums; i += 4) {
        const int column = accumulator_column(thread_in_warpgroup(), i);
        const float2 scale = *reinterpret_cast<const float2*>(columns + column);
        total[i] += rows.upper * scale.x * sums[i];
        total[i + 1] += rows.upper * scale.y * sums[i + 1];
        total[i + 2] += rows.lower * scale.x * sums[i + 2];
        total[i + 3] += rows.lower * scale.y * sums[i + 3];
    }
}

__device__ void begin_slice(float (&sums)[kSliceSums], u64 a, u64 b) {
    wgmma_fence_operands(sums);
    wgmma_fence();
    wgmma_tile<OperandA, OperandB>(sums, a, b, false);
    wgmma_commit_group();
}

__device__ void finish_slice(float (&sums)[kSliceSums]) {
    wgmma_wait_group<0>();
    wgmma_fence_operands(sums);
}

// The warp has read the stage. Unlike wgmma's reads, those of the scales have to be ordered by the
// arrival, at this CTA's barrier alone: its own producer loads them.
__device__ void release_scaled_stage(SharedMemory& shared, u32 stage) {
    __syncwarp();
    const u32 rank = CLUSTER == 1 ? 0 : block_rank_in_cluster();
    const u32 lane = lane_index();
    if (lane == rank) shared.empty[stage].arrive();
    if (lane != rank && lane < CLUSTER) shared.empty[stage].arrive_cluster_relaxed(lane);
}

__device__ void multiply_scaled_tile(
    SharedMemory& shared, Ring& place, Sums& total, int consumer, int k_blocks, int n
) {
    for (int block = 0; block < k_blocks; ++block, place.step()) {
        auto& stage = shared.stages[place.index];
        auto& scales = shared.extras[place.index];
        const u64 a = OperandA::descriptor(stage.a, consumer * ROWS);
        // The operands of this stage have landed.
        shared.full[place.index].wait(place.phase);
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
            const int column = slice * kSliceColumns;
            const bool is_last = slice == kSlices - 1;
            float* slice_total = total[0] + column / 2;
            float sums[kSliceSums];
            begin_slice(sums, a, OperandB::descriptor(stage.b, column));
            // Scales are read while the tensor cores work.
            const RowScales rows = row_scales(scales.a_scales, consumer);
            if constexpr (kScalesColumns) {
                finish_slice(sums);
                add_scaled_columns(slice_total, sums, rows, scales.b_scales.data() + column);
                if (is_last) release_scaled_stage(shared, place.index);
            } else {
                const float scale = slice_scale(scales.b_scales, slice, n, block);
                finish_slice(sums);
                // The stage is loaded again while these are added.
                if (is_last) release_scaled_stage(shared, place.index);
                add_scaled(slice_total, sums, rows, scale);
            }
        }
    }
}

__device__ void multiply_scaled_tiles(
    SharedMemory& shared, const CTile& c, TileWalk walk, int consumer
) {
    auto place = Ring::for_consumer();
    u32 chunks = 0;
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        Sums total = {};
        multiply_scaled_tile(shared, place, total, consumer, walk.k_blocks, start.n);
        store_sums(shared, chunks, total, Untouched{}, c, consumer, start);
    }
    if (threadIdx.x % kGroupThreads == 0) wait_group_read<0>();
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
    const TileWalk walk(m, n, k);
    run_roles(
        [&](SharedMemory& shared) { load_tiles(shared, a, b, a_scales, b_scales, walk); },
        [&](SharedMemory& shared, int consumer) {
            multiply_scaled_tiles(shared, c, walk, consumer);
        },
        a, b, a_scales, b_scales, c
    );
}
