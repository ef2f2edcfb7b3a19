#pragma once

// The tile config of attention: numbers derived from the host's constants, which attention.cu
// explains.
#include <tmaasync/attention/mask.cuh>
#include <tmaasync/attention/paged.cuh>
#include <tmaasync/structured/cluster_shape.cuh>

#include "abi.cuh"

namespace tmaasync::kernels::attention {

using Span = ClusterShape<CLUSTER>;  // the CTAs of adjacent tiles

constexpr int kConsumerRows = 64;  // rows of the tile per consumer warpgroup
constexpr int kTileRows = CONSUMERS * kConsumerRows;
constexpr int kTilePositions = kTileRows / HEADS_PER_TILE;
constexpr int kSpanPositions = CLUSTER * kTilePositions;
constexpr int kConsumerPositions = kConsumerRows / HEADS_PER_TILE;

// Whether the tiles of a span differ in their last block.
constexpr bool kTilesDiffer = CLUSTER > 1 && HAS_RIGHT;

static_assert(kConsumerRows % HEADS_PER_TILE == 0, "a consumer's rows are whole positions");

// The location of a sequence's keys: packed rows, or a paged KV cache.
template <int kPageSize>
struct KeysIn {
    using type = PagedSequence<kPageSize>;
};
template <>
struct KeysIn<0> {
    using type = RaggedSequence;
};
using Keys = typename KeysIn<PAGE_SIZE>::type;
using Entry = EntryWith<Keys>;
using WorkList = WorkListWith<Keys>;

using Mask = WindowMask<BLOCK_N, HAS_LEFT, HAS_RIGHT>;

}  // namespace tmaasync::kernels::attention
