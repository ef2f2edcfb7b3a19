#pragma once

// The pipeline between the producer and the consumers: what a stage holds, who releases it, and how
// an operand that CTAs share is loaded.
#include <tmaasync/ring.cuh>

#include "epilogue.cuh"

namespace tmaasync {

// The operand tiles of one step along K.
struct Stage {
    static constexpr int kBytes = ATile::kBytes + BTile::kBytes;

    typename ATile::Shared a;
    typename BTile::Shared b;
};

// Side holds the scales that a stage of a block-scaled GEMM has next to the tiles.
template <typename Side>
using OperandRing =
    Ring<Stage, STAGES, ConsumerWarps<kConsumersPerTile * kWarps>, Cluster::Sharing, Side>;

// A CTA's shared memory.
template <typename Side>
struct SharedStorage {
    OperandRing<Side> ring;
    TileEpilogue::Shared epilogue[CONSUMERS];

    __device__ void init() { ring.init(); }
};

using SharedMemory = SharedStorage<NoSide>;
using OperandProducer = RingProducer<OperandRing<NoSide>>;

// Loads an operand tile that kCtas CTAs share: all of the multicast group, or one.
template <int kCtas, typename LoadedStage, typename Tile>
__device__ void load_operand(
    const LoadedStage& stage,
    typename Tile::Shared& shared,
    const Tile& tile,
    Coordinates<Tile::kRank> at
) {
    if constexpr (kCtas > 1) {
        stage.async_multicast_load(tile, shared, at);
    } else {
        tile.async_copy(shared, stage.full(), at);
    }
}

// The first row of a consumer in its CTA's tile.
__device__ int consumer_row(int consumer) {
    return PING_PONG ? 0 : consumer * ROWS;
}

}  // namespace tmaasync
