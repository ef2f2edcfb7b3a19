// All-gather + block-scaled FP8 GEMM: all_gather_gemm.cu with the operands of scaled_gemm.cu. The
// scales of A arrive too, in an array [K / 128, M] after each half of the buffer: a second warp of
// each CTA pushes the scales of own rows, unit by unit, by ordinary stores. TMA could store them
// only where a shard starts and ends at a multiple of 16 bytes. Each unit of scales has a signal of
// its own. All tiles load their scales from the own buffer, own rows too.
//
// own_scales is the array of the own shard, with any strides. gathered_scales[h] is the array in
// half h of the own buffer, and buffers.halves[h][r] the one of rank r, with `pitch` scales from
// one K block to the next.
#include "all_gather.cuh"
#include "scaled_wgmma.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels;
using namespace tmaasync::kernels::gemm;

static_assert(!kRowsStartAnywhere, "scales of a tile start at a multiple of its rows");

extern "C" __device__ const int all_gather_scaled_gemm_shared_bytes =
    sizeof(GatherMemory<ScaledOperands>);

// A parameter that the host packs.
struct ScaleBuffers {
    float* halves[2][8];
};

struct OwnScales {
    const float* scales;
    i64 row_step;
    i64 block_step;
    const ScaleBuffers& buffers;
    i64 pitch;

    // Push the units blockIdx.x, blockIdx.x + gridDim.x, ... to all ranks, first to the rank
    // itself; by a warp of every CTA.
    __device__ void push(const GatherRound& round) const {
        const int ranks = round.signals.ranks, rank = round.signals.rank;
        const int units = round.units(rank);
        for (int i = blockIdx.x; i < ranks * units; i += gridDim.x) {
            const int peer = (rank + ranks - i / units) % ranks, unit = i % units;
            if (lane_index() == 0) round.signals.wait(peer, round.epoch - 1);  // it has room
            __syncwarp();
            push_unit(round, buffers.halves[round.epoch % 2][peer], unit);
            ptx::fence_proxy_async_global();
            __syncwarp();
            if (lane_index() == 0) {
                round.signals.post(peer, round.signal_of(rank, units + unit), round.epoch);
            }
        }
    }

private:
    __device__ __forceinline__ void push_unit(
        const GatherRound& round, float* target, int unit
    ) const {
        constexpr int kBlocks = kUnitColumns / kScaleBlock, kAtOnce = 4;
        const int rank = round.signals.rank, columns = round.units_along_columns();
        const int rows = round.shards.rows(rank);
        const int first_row = unit / columns * kUnitRows, first = unit % columns * kBlocks;
        const int end = min(first + kBlocks, count_tiles(round.shards.columns, kScaleBlock));
        for (int row = first_row + lane_index(); row < min(first_row + kUnitRows, rows);
             row += 32) {
            for (int block = first; block < end; block += kAtOnce) {
                float loaded[kAtOnce];
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    if (block + j < end) {
                        loaded[j] = scales[row * row_step + (block + j) * block_step];
                    }
                }
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    if (block + j < end) {
                        target[(block + j) * pitch + round.shards.starts[rank] + row] = loaded[j];
                    }
                }
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) all_gather_scaled_gemm(
    const __grid_constant__ ATile own,
    const __grid_constant__ PushTile pushed,
    const __grid_constant__ BTile b,
    const __grid_constant__ BScaleTile b_scales,
    const __grid_constant__ CTile c,
    const float* own_scales,
    const TMATensorTileArray<ATile> gathered,
    const TMATensorTileArray<AScaleTile> gathered_scales,
    const TMATensorTileArray<PushTile> targets,
    const __grid_constant__ ScaleBuffers buffers,
    i64 row_step,
    i64 block_step,
    i64 pitch,
    const __grid_constant__ Signals signals,
    const __grid_constant__ Shards shards,
    u64* rounds,
    int m,
    int n,
    int k
) {
    const OwnScales scales{own_scales, row_step, block_step, buffers, pitch};
    gather_and_multiply<ScaledOperands>(
        [&](u32 half) { return ScaledOperands{b, gathered_scales[half], b_scales}; },
        [&](const GatherRound& round) { scales.push(round); },
        {own, pushed, c, gathered, targets, signals, shards, rounds, m, n, k}, own, pushed, b,
        b_scales, c
    );
}
