#pragma once

// The pipeline between the producer and the consumers: a ring buffer of STAGES stages in shared
// memory, each with a full and an empty barrier; how a stage is loaded and released.
#include "config.cuh"

namespace tmaasync {

using StageState = PipelineState<STAGES>;

// A stage of most kernels holds the operand tiles alone.
struct NoScales {};

// A CTA's shared memory. StageScales holds the scales that a stage of a block-scaled GEMM has next
// to the tiles.
template <typename StageScales>
struct SharedStorage {
    struct Stage {
        typename ATile::Shared a;
        typename BTile::Shared b;
    } stages[STAGES];
    typename CTile::Shared epilogue[CONSUMERS][kEpilogueBuffers];
    SharedMemBarrier full[STAGES];
    SharedMemBarrier empty[STAGES];
    StageScales scales[STAGES];
};

using SharedMemory = SharedStorage<NoScales>;

constexpr u32 kStageBytes = ATile::kBytes + BTile::kBytes;

// CTAs that share loads have neighbouring ranks in the cluster; CTAs that split K have ranks
// CLUSTER apart.
__device__ int first_multicast_rank() {
    if constexpr (SPLIT_K == 1) return 0;
    return block_rank_in_cluster() / CLUSTER * CLUSTER;
}

__device__ int multicast_rank() {
    if constexpr (SPLIT_K == 1) return block_rank_in_cluster();
    return block_rank_in_cluster() % CLUSTER;
}

// Loads an operand tile that kCtas CTAs share: each loads its part and multicasts it to all.
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
            shared, full, at, kEveryCta << first_multicast_rank(), multicast_rank()
        );
    } else {
        tile.async_copy(shared, full, at);
    }
}

template <typename Storage>
__device__ void init_barriers(Storage& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);
        // One lane of every warp that reads a stage, in every CTA that our multicast writes into.
        shared.empty[stage].init(kConsumersPerTile * kWarps * CLUSTER);
    }
    fence_barrier_init();
}

// Releases a stage that the warp has read, to the producer of every CTA that wrote into it.
template <typename Storage>
__device__ void release_stage(Storage& shared, u32 stage) {
    if constexpr (CLUSTER == 1) {
        if (lane_index() == 0) shared.empty[stage].arrive();
    } else {
        if (lane_index() < CLUSTER) {
            shared.empty[stage].arrive_cluster_relaxed(first_multicast_rank() + lane_index());
        }
    }
}

// The first row of a consumer in its CTA's tile.
__device__ int consumer_row(int consumer) {
    return PING_PONG ? 0 : consumer * ROWS;
}

}  // namespace tmaasync
