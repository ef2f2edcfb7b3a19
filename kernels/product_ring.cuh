#pragma once

// The ring that kernels multiply tiles out of: what a CTA has in shared memory, how a stage is
// loaded and given back. Included by product.cuh.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync {

using Output = typename CTile::Element;
using Sum = typename SumOf<typename OperandA::Element>::Type;
using Ring = PipelineState<STAGES>;

constexpr int kInstructionRows = 64;
constexpr int kParts = ROWS / kInstructionRows;
constexpr int kGroupThreads = 128;
// With PING_PONG every consumer has tiles of its own: one multiplies while the other stores.
constexpr int kSharers = PING_PONG ? 1 : CONSUMERS;
constexpr int kBlockM = kSharers * ROWS;
constexpr int kClusterCtas = CLUSTER * SPLIT_K;
// CTAs that share the columns of B lie one below the other, those that share the rows of A side by
// side.
constexpr int kCtasDown = SIDE_BY_SIDE ? 1 : CLUSTER;
constexpr int kCtasAcross = SIDE_BY_SIDE ? CLUSTER : 1;
constexpr int kBlockK = OperandA::kDepth;
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

struct SharedMemory {
    struct Stage {
        typename ATile::Shared a;
        typename BTile::Shared b;
    } stages[STAGES];
    typename CTile::Shared epilogue[CONSUMERS][kEpilogueBuffers];
    SharedMemBarrier full[STAGES];
    SharedMemBarrier empty[STAGES];
    StageExtras extras[STAGES];
};

// What a thread holds of its group's rows: of each 64 the two neighbouring columns of every eight,
// in rows lane / 4 and lane / 4 + 8 of the warp's 16.
using Sums = Sum[kParts][BLOCK_N / 2];
// The same of the columns that this CTA stores.
using Share = Sum[kParts][kShareColumns / 2];

constexpr u32 kStageBytes = ATile::kBytes + BTile::kBytes;

// The CTAs that share loads follow each other in their cluster; those that split K are CLUSTER
// apart.
__device__ int first_sharer() {
    if constexpr (SPLIT_K == 1) return 0;
    return block_rank_in_cluster() / CLUSTER * CLUSTER;
}

__device__ int rank_among_sharers() {
    if constexpr (SPLIT_K == 1) return block_rank_in_cluster();
    return block_rank_in_cluster() % CLUSTER;
}

// A tile of an operand that so many CTAs share: each loads its part of it and sends it to all.
template <int kCtas, typename Tile>
__device__ void load_operand(
    typename Tile::Shared& shared,
    SharedMemBarrier& full,
    const Tile& tile,
    Coordinates<Tile::kRank> at
) {
    if constexpr (kCtas > 1) {
        constexpr u16 kEveryCta = (1 << kCtas) - 1;
        tile.template async_multicast_load_partitioned<kCtas>(
            shared, full, at, kEveryCta << first_sharer(), rank_among_sharers()
        );
    } else {
        tile.async_copy(shared, full, at);
    }
}

__device__ void open_ring(SharedMemory& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);
        // One lane of every warp that reads a stage, in every CTA that our multicast writes into.
        shared.empty[stage].init(kSharers * kWarps * CLUSTER);
    }
    fence_barrier_init();
}

// The warp has read the stage: tells the producer of every CTA that wrote into it.
__device__ void release_stage(SharedMemory& shared, u32 stage) {
    if constexpr (CLUSTER == 1) {
        if (lane_index() == 0) shared.empty[stage].arrive();
    } else {
        if (lane_index() < CLUSTER) {
            shared.empty[stage].arrive_cluster_relaxed(first_sharer() + lane_index());
        }
    }
}

// Where the rows of a group begin in its tile.
__device__ int group_row(int consumer) {
    return PING_PONG ? 0 : consumer * ROWS;
}

}  // namespace tmaasync
