#pragma once

// The tile config of attention: numbers that follow from the constants that the host passes.
// attention.cu explains those.
#include <tmaasync/tmaasync.cuh>

#include "pages.cuh"

namespace tmaasync {

constexpr int kWarpgroupThreads = 128;
constexpr int kConsumerRows = 64;  // of the tile, which a consumer warpgroup works on
constexpr int kTileRows = CONSUMERS * kConsumerRows;
constexpr int kTilePositions = kTileRows / HEADS_PER_TILE;
constexpr int kSpanPositions = CLUSTER * kTilePositions;
constexpr int kConsumerPositions = kConsumerRows / HEADS_PER_TILE;

// Whether the tiles of a span differ in the last block that they see.
constexpr bool kSkipsBlocks = CLUSTER > 1 && HAS_RIGHT;

static_assert(kConsumerRows % HEADS_PER_TILE == 0, "a consumer's rows are whole positions");

using Keys = typename KeysIn<PAGE_SIZE>::type;

__device__ __forceinline__ int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

}  // namespace tmaasync
