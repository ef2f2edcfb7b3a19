#pragma once

// The tile config of a GEMM: numbers and types that follow from the tile types and constants that
// the host passes. gemm.cu explains those.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync {

using Output = typename CTile::Element;
using Accumulator = typename AccumulatorOf<typename ATile::Element>::Type;

// --- threads -------------------------------------------------------------------------------------

constexpr int kWarpgroupThreads = 128;
constexpr int kWarps = kWarpgroupThreads / 32;
constexpr int kProducer = 0;  // the warpgroup that loads; the others are consumers
constexpr int kThreads = (1 + CONSUMERS) * kWarpgroupThreads;

// Registers per thread that a producer keeps and a consumer claims. The CTA has 64 Ki.
constexpr int kProducerRegisters = CONSUMERS == 3 ? 32 : 40;
constexpr int kConsumerRegisters = CONSUMERS == 3 ? 160 : 232;

static_assert(!PING_PONG || CONSUMERS == 2, "a ping-pong kernel has two consumers");

// --- CTA tile and cluster ------------------------------------------------------------------------

// A wgmma instruction has 64 rows; a consumer issues one for each of its row blocks.
constexpr int kMmaRows = 64;
constexpr int kRowBlocks = ROWS / kMmaRows;
// In a ping-pong kernel every consumer has tiles of its own, in a cooperative one all share each.
constexpr int kConsumersPerTile = PING_PONG ? 1 : CONSUMERS;
constexpr int kBlockM = kConsumersPerTile * ROWS;
constexpr int kBlockK = 128 / static_cast<int>(sizeof(typename ATile::Element));

// CTAs that share loads by multicast: along M they share the columns of B, along N the rows of A.
// CTAs that split K come in addition.
constexpr int kClusterM = SIDE_BY_SIDE ? 1 : CLUSTER;
constexpr int kClusterN = SIDE_BY_SIDE ? CLUSTER : 1;
constexpr int kClusterCtas = CLUSTER * SPLIT_K;

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

__device__ constexpr int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

}  // namespace tmaasync
