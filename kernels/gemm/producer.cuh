#pragma once

// What gemm.cu and gemm_epilogue.cu share: how wgmma reads the operands, and their loads.
#include "split_k.cuh"

namespace tmaasync {

using Operands = OperandPair<
    WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>,
    WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>>;

__device__ Coordinates<ATile::kRank> a_start(const TileWalk::Start& start, int k) {
    const int m = start.m;
    return in_batch<ATile::kRank>(A_IS_K_MAJOR ? k : m, A_IS_K_MAJOR ? m : k, start.batch);
}

__device__ Coordinates<BTile::kRank> b_start(const TileWalk::Start& start, int k) {
    const int n = start.n;
    return in_batch<BTile::kRank>(B_IS_K_MAJOR ? k : n, B_IS_K_MAJOR ? n : k, start.batch);
}

// `load_more(place, start)` is what the ring takes behind the operands of a tile.
template <typename LoadMore>
__device__ void load_tiles(
    SharedMemory& shared, const ATile& a, const BTile& b, TileWalk walk, LoadMore load_more
) {
    const KBlocks blocks(walk.k_blocks);
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        for (int block = 0; block < blocks.count; ++block, place.step()) {
            auto& stage = shared.stages[place.index];
            auto& full = shared.full[place.index];
            // Every consumer of this stage, in every CTA of the cluster, has read it.
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(kStageBytes);
            const int k = (blocks.first + block) * kBlockK;
            load_operand<kCtasAcross>(stage.a, full, a, a_start(start, k));
            load_operand<kCtasDown>(stage.b, full, b, b_start(start, k));
        }
        load_more(place, start);
    }
}

}  // namespace tmaasync
