#pragma once

// The operands of gemm.cu and gemm_epilogue.cu, and the producer that loads them.
#include "config.cuh"

namespace tmaasync {

using Loop = TileLoop<
    WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>,
    WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>>;

__device__ Coordinates<ATile::kRank> a_at(const OutputTile& tile, int k) {
    const int m = tile.m;
    return in_batch<ATile::kRank>(A_IS_K_MAJOR ? k : m, A_IS_K_MAJOR ? m : k, tile.batch);
}

__device__ Coordinates<BTile::kRank> b_at(const OutputTile& tile, int k) {
    const int n = tile.n;
    return in_batch<BTile::kRank>(B_IS_K_MAJOR ? k : n, B_IS_K_MAJOR ? n : k, tile.batch);
}

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

// Loads the operands of every tile. After each tile, load_more(producer, tile) may fill further
// stages.
template <typename LoadMore>
__device__ void load_tiles(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const TileScheduler& schedule,
    int k_blocks,
    LoadMore load_more
) {
    auto producer = shared.ring.producer();
    for (const auto tile : schedule) {
        const auto blocks = k_range(schedule, tile, k_blocks);
        for (const auto stage : producer.produce(blocks.count)) {
            const int k = (blocks.first + stage.iteration()) * kBlockK;
            load_operand<Cluster::kN>(stage, stage->a, a, a_at(tile, k));
            load_operand<Cluster::kM>(stage, stage->b, b, b_at(tile, k));
        }
        load_more(producer, tile);
    }
}

}  // namespace tmaasync
