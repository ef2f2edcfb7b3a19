#pragma once

// The host's constants, which attention.cu explains, and the numbers that follow from them.
#include <tmaasync/tmaasync.cuh>

namespace tmaasync {

constexpr int kGroupThreads = 128;
constexpr int kGroupRows = 64;
constexpr int kTileRows = CONSUMERS * kGroupRows;
constexpr int kTilePositions = kTileRows / HEADS_PER_TILE;
constexpr int kSpanPositions = CLUSTER * kTilePositions;
constexpr int kGroupPositions = kGroupRows / HEADS_PER_TILE;

// Whether the tiles of a span differ in the last block that they see.
constexpr bool kSkipsBlocks = CLUSTER > 1 && HAS_RIGHT;

static_assert(kGroupRows % HEADS_PER_TILE == 0, "a group's rows are whole positions");

__device__ __forceinline__ int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

}  // namespace tmaasync
