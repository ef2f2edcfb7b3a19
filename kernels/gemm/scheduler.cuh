#pragma once

// The tile scheduler of the GEMMs that are not grouped.
#include "config.cuh"

namespace tmaasync {

struct TileScheduler : StaticScheduler<Tiles> {
    int k_blocks;

    __device__ TileScheduler(int m, int n, int k, int batches = 1)
        : StaticScheduler(Tiles(m, n, batches)), k_blocks(count_tiles(k, kBlockK)) {}
};

}  // namespace tmaasync
