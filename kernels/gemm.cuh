#pragma once

// What gemm.cu and gemm_epilogue.cu share: how wgmma reads the operands, and their loads.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

using namespace tmaasync;

using OperandA = WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>;
using OperandB = WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>;

#include "product.cuh"

__device__ Coordinates<2> a_start(int m, int k) {
    return A_IS_K_MAJOR ? Coordinates<2>{k, m} : Coordinates<2>{m, k};
}

__device__ Coordinates<2> b_start(int n, int k) {
    return B_IS_K_MAJOR ? Coordinates<2>{k, n} : Coordinates<2>{n, k};
}

// `load_more(place, start)` is what the ring takes behind the operands of a tile.
template <typename LoadMore>
__device__ void load_tiles(
    SharedMemory& shared, const ATile& a, const BTile& b, TileWalk walk, LoadMore load_more
) {
    auto place = Ring::for_producer();
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        for (int block = 0; block < walk.k_blocks; ++block, place.step()) {
            auto& stage = shared.stages[place.index];
            auto& full = shared.full[place.index];
            // Every consumer of this stage, in every CTA of the cluster, has read it.
            shared.empty[place.index].wait(place.phase);
            full.expect_bytes(kStageBytes);
            a.async_copy(stage.a, full, a_start(start.m, block * kBlockK));
            load_b(stage.b, full, b, b_start(start.n, block * kBlockK));
        }
        load_more(place, start);
    }
}
