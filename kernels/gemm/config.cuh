#pragma once

// The host's constants and tile types, which gemm.cu explains, and the numbers that follow from
// them.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync {

using Output = typename CTile::Element;
using Sum = typename SumOf<typename ATile::Element>::Type;

constexpr int kInstructionRows = 64;
constexpr int kParts = ROWS / kInstructionRows;
constexpr int kGroupThreads = 128;
// With PING_PONG every consumer has tiles of its own: one multiplies while the other stores.
constexpr int kSharers = PING_PONG ? 1 : CONSUMERS;
constexpr int kBlockM = kSharers * ROWS;
constexpr int kBlockK = 128 / static_cast<int>(sizeof(typename ATile::Element));
constexpr int kClusterCtas = CLUSTER * SPLIT_K;
// CTAs that share the columns of B lie one below the other, those that share the rows of A side by
// side.
constexpr int kCtasDown = SIDE_BY_SIDE ? 1 : CLUSTER;
constexpr int kCtasAcross = SIDE_BY_SIDE ? CLUSTER : 1;
constexpr int kThreads = (1 + CONSUMERS) * kGroupThreads;
constexpr int kProducer = 0;
constexpr int kWarps = kGroupThreads / 32;
constexpr int kEpilogueBuffers = 2;
// A tile of a batch has a side of 1 in front of the two of its matrix.
constexpr int kLines = CTile::kRank - 2;
constexpr int kInLine = CTile::kRank - 1;
constexpr int kChunkColumns = CTile::side(C_IS_N_MAJOR ? kInLine : kLines);

// How many of the CTAs that split K each store a share of the tile's columns: as many as there are
// whole chunks for.
__device__ constexpr int count_shares() {
    int shares = SPLIT_K;
    while (BLOCK_N % (shares * kChunkColumns) != 0) --shares;
    return shares;
}

constexpr int kShares = count_shares();
constexpr int kShareColumns = BLOCK_N / kShares;
constexpr int kChunks = kShareColumns / kChunkColumns;
constexpr int kLineBytes = CTile::box_side(kInLine) * static_cast<int>(sizeof(Output));

// Registers per thread: what a producer keeps and a consumer claims. The CTA has 64 Ki.
constexpr int kProducerRegisters = CONSUMERS == 3 ? 32 : 40;
constexpr int kConsumerRegisters = CONSUMERS == 3 ? 160 : 232;

static_assert(ROWS % kInstructionRows == 0, "whole instructions");
static_assert(!PING_PONG || CONSUMERS == 2, "two groups take turns");
static_assert(
    CTile::side(C_IS_N_MAJOR ? kLines : kInLine) == kInstructionRows, "a chunk has the rows of one"
);
static_assert(kLineBytes == span_bytes(CTile::kSwizzle) && kLineBytes >= 32, "see gemm.cu");
static_assert(BLOCK_N % kChunkColumns == 0, "whole chunks of output columns");
static_assert(
    kSameType<Sum, int> == kSameType<Output, int>, "integers are stored as they are summed"
);

// What a thread holds of its group's rows: of each 64 the two neighbouring columns of every eight,
// in rows lane / 4 and lane / 4 + 8 of the warp's 16.
using Sums = Sum[kParts][BLOCK_N / 2];
// The same of the columns that this CTA stores.
using Share = Sum[kParts][kShareColumns / 2];

__device__ constexpr int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

}  // namespace tmaasync
