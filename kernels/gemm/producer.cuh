#pragma once

// The operands of gemm.cu and gemm_epilogue.cu, and the producer that loads them.
#include "mainloop.cuh"
#include "split_k.cuh"

namespace tmaasync {

using Operands = OperandPair<
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

// Loads the operands of every tile. After each tile, load_more(producer, tile) may fill further
// stages.
template <typename LoadMore>
__device__ void load_tiles(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    TileScheduler scheduler,
    LoadMore load_more
) {
    const auto blocks = KRange::of<Cluster>(scheduler.k_blocks);
    auto producer = shared.ring.producer();
    for (; !scheduler.done(); scheduler.step()) {
        const auto tile = scheduler.tile();
        for (const auto stage : producer.produce(blocks.count)) {
            const int k = (blocks.first + stage.iteration()) * kBlockK;
            load_operand<Cluster::kN>(stage, stage->a, a, a_at(tile, k));
            load_operand<Cluster::kM>(stage, stage->b, b, b_at(tile, k));
        }
        load_more(producer, tile);
    }
}

}  // namespace tmaasync
