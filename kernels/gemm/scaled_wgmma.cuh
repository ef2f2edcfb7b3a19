#pragma once

// The operands of a block-scaled FP8 GEMM on wgmma: the producer that loads them and their scales,
// and the main loop. scaled_gemm.cu explains tiles and constants.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

#include "config.cuh"
#include "float_scales.cuh"

namespace tmaasync::kernels::gemm {

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

// Whether the rows of a tile start anywhere in A. Their scales are then loaded from a multiple of
// 16 bytes on, the least step of a TMA coordinate.
constexpr bool kRowsStartAnywhere = AScaleTile::side(1) > kBlockM;
static_assert(
    AScaleTile::side(1) == kBlockM + (kRowsStartAnywhere ? kScalesPerLoad : 0),
    "a scale for every row"
);

constexpr u32 kScaledStageBytes = Stage::kBytes + AScaleTile::kBytes + BScaleTile::kBytes;

// A thread's scales of a stage, for a tile that starts at column n.
struct Scales {
    int row;  // the first for which the thread has accumulators
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

// The operands of all tiles, with the interface of UnscaledOperands.
struct ScaledOperands {
    using Memory = ScaledSharedMemory;
    __device__ static constexpr bool has_scales() { return true; }

    const BTile& b;
    const AScaleTile& a_scales;
    const BScaleTile& b_scales;

    __device__ static constexpr int last_row(int) { return kUnshifted; }

    // The scales that a load has before the scale of row m.
    __device__ static constexpr int skipped(int m) {
        return kRowsStartAnywhere ? m % kScalesPerLoad : 0;
    }

    template <typename PartOf, typename Schedule>
    __device__ void load(
        Memory& shared, PartOf part_of, const Schedule& schedule, int k_blocks, int
    ) const {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (int block = 0; block < k_blocks; ++block) {
                const PartOfA part = part_of(tile, block * kBlockK);
                const auto stage = producer.acquire(kScaledStageBytes);
                auto& scales = shared.ring.side[stage.index()];
                auto& full = stage.full();
                part.a.async_copy(stage->a, full, {block * kBlockK, part.m});
                stage.async_multicast_load(b, stage->b, {block * kBlockK, tile.n});
                a_scales.async_copy(scales.a, full, {tile.m - skipped(tile.m), block});
                b_scales.async_copy(scales.b, full, b_scales_at(tile.n, block));
            }
        }
    }

    template <typename Schedule, typename Store>
    __device__ static void multiply(
        Memory& shared, const Schedule& schedule, int k_blocks, int consumer, const Store& store
    ) {
        auto stages = shared.ring.template consumer<Proxy::kMixed>();
        int row = consumer * ROWS + accumulator_row(thread_in_warpgroup(), 0);
        // Keep it in a register. Computed anew for every stage, it costs 8 instructions, 1 to 2 %
        // of the time (DeepGEMM's shapes, H100, 2026-11-24: docs/decisions/fp8.md).
        ptx::wgmma_fence_operand(row);
        for (const auto tile : schedule) {
            ScaledLoop::Accumulators accumulators;
            ScaledLoop::multiply(
                stages, accumulators, k_blocks, consumer * ROWS,
                Scales{row + skipped(tile.m), tile.n}
            );
            store(accumulators, tile);
        }
    }
};

}  // namespace tmaasync::kernels::gemm
