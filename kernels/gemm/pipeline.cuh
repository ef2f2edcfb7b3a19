#pragma once

// The ring that kernels multiply tiles out of: what a CTA has in shared memory, how a stage is
// loaded and given back.
#include "config.cuh"

namespace tmaasync {

using Ring = PipelineState<STAGES>;

// What most kernels have beside the tiles of a stage.
struct NoExtras {};

template <typename StageExtras>
struct SharedMemoryWith {
    struct Stage {
        typename ATile::Shared a;
        typename BTile::Shared b;
    } stages[STAGES];
    typename CTile::Shared epilogue[CONSUMERS][kEpilogueBuffers];
    SharedMemBarrier full[STAGES];
    SharedMemBarrier empty[STAGES];
    StageExtras extras[STAGES];
};

using SharedMemory = SharedMemoryWith<NoExtras>;

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

template <typename Shared>
__device__ void open_ring(Shared& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);
        // One lane of every warp that reads a stage, in every CTA that our multicast writes into.
        shared.empty[stage].init(kSharers * kWarps * CLUSTER);
    }
    fence_barrier_init();
}

// The warp has read the stage: tells the producer of every CTA that wrote into it.
template <typename Shared>
__device__ void release_stage(Shared& shared, u32 stage) {
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
