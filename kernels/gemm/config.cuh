#pragma once

// The tile config of a GEMM: numbers and types that follow from the tile types and constants that
// the host passes. gemm.cu explains those.
#include <tmaasync/roles.cuh>
#include <tmaasync/scheduler.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync {

using Output = typename CTile::Element;
using Accumulator = typename AccumulatorOf<typename ATile::Element>::Type;

// --- threads -------------------------------------------------------------------------------------

constexpr int kWarpgroupThreads = 128;
constexpr int kWarps = kWarpgroupThreads / 32;

static_assert(!PING_PONG || CONSUMERS == 2, "a ping-pong kernel has two consumers");

// --- CTA tile, cluster and roles -----------------------------------------------------------------

// A wgmma instruction has 64 rows; a consumer issues one for each of its row blocks.
constexpr int kMmaRows = 64;
constexpr int kRowBlocks = ROWS / kMmaRows;
// In a ping-pong kernel every consumer has tiles of its own, in a cooperative one all share each.
constexpr int kConsumersPerTile = PING_PONG ? 1 : CONSUMERS;
constexpr int kBlockM = kConsumersPerTile * ROWS;
constexpr int kBlockK = 128 / static_cast<int>(sizeof(typename ATile::Element));

using Cluster = ClusterShape<SIDE_BY_SIDE ? 1 : CLUSTER, SIDE_BY_SIDE ? CLUSTER : 1, SPLIT_K>;
using Roles =
    WarpSpecialized<CONSUMERS, DefaultRegisterSplit<CONSUMERS>, Cluster::kCtas, Cluster::kSplitK>;
using Tiles = OutputTiles<kBlockM, BLOCK_N, Cluster, GROUP_M>;

constexpr int kThreads = Roles::kThreads;

static_assert(ROWS % kMmaRows == 0, "whole instructions");

// --- epilogue ------------------------------------------------------------------------------------

// The output leaves in chunks of 64 rows and this many columns.
constexpr int kChunkColumns = CTile::side(CTile::kRank - (C_IS_N_MAJOR ? 1 : 2));

// How many of the CTAs that split K store a slice of the tile's columns each: as many as the tile
// has whole chunks for.
__device__ constexpr int count_output_slices() {
    int slices = SPLIT_K;
    while (BLOCK_N % (slices * kChunkColumns) != 0) --slices;
    return slices;
}

constexpr int kOutputSlices = count_output_slices();
constexpr int kOutputSliceColumns = BLOCK_N / kOutputSlices;

static_assert(
    kSameType<Accumulator, int> == kSameType<Output, int>, "integers are stored as accumulated"
);

// --- accumulators --------------------------------------------------------------------------------

// A thread's accumulators: of each row block, two neighbouring columns of every eight, in rows
// lane / 4 and lane / 4 + 8 of its warp's 16.
using Accumulators = Accumulator[kRowBlocks][BLOCK_N / 2];
// The same of the columns that this CTA stores.
using OutputSlice = Accumulator[kRowBlocks][kOutputSliceColumns / 2];

}  // namespace tmaasync
