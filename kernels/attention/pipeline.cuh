#pragma once

// Attention's shared memory: the pipelines of queries, keys and values, and the staged output.
#include <tmaasync/attention/pipelines.cuh>

#include "abi.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

using Operands = AttentionOperands<
    QTile,
    KTile,
    VTile,
    BLOCK_N,
    HEAD_DIM,
    TRANSPOSES_V,
    HAS_FEW_ROWS,
    HAS_LSE || SPLITS_KEYS>;
using Accumulators = typename Operands::Accumulators;
using Softmax = typename Operands::Softmax;

// With FP8 operands every KV head has descale factors, and V is transposed, here or by
// attention_values.cu.
constexpr bool kIsFp8 = Operands::kIsFp8;

// Whether scores are scaled and capped before the mask; else the softmax scales them.
constexpr bool kCapsScores = HAS_SOFTCAP;

static_assert(
    !O_OVER_Q || sizeof(typename QTile::Shared) == sizeof(typename OTile::Shared),
    "rows of one width"
);
static_assert(CLUSTER == 1 || !IS_PACKED, "tiles of packed sequences have no fixed neighbours");
static_assert(
    !kIsFp8 || !IS_PACKED || TRANSPOSES_V, "attention_values.cu transposes padded arrays alone"
);

// The descale factors of one KV head of one entry, for scores and for values.
struct Descale {
    float scores;
    float values;
};

// The scales of FP8 operands, and their optional arrays.
struct Descales {
    const Scales& scales;
    const float* q;
    const float* k;
    const float* v;

    __device__ __forceinline__ Descale at(i32 entry, i32 kv_head) const {
        return {
            scales.q.at(q, entry, kv_head) * scales.k.at(k, entry, kv_head),
            scales.v.at(v, entry, kv_head)
        };
    }
};

// The descale factors of a tile: for FP8 its KV head's, else 1.
template <bool kIsScaled>
struct TileDescale {
    __device__ static TileDescale of(const Descales&, const Tile&, i32) { return {}; }
    __device__ static constexpr Descale descale() { return {1, 1}; }
};
template <>
struct TileDescale<true> {
    Descale own;

    __device__ __forceinline__ static TileDescale of(
        const Descales& all, const Tile& tile, i32 kv_head
    ) {
        return {all.at(tile.entry.index, kv_head)};
    }
    __device__ __forceinline__ Descale descale() const { return own; }
};

// The producer's message that accompanies the queries of a tile.
struct Task : TileDescale<kIsFp8> {
    Tile tile;
};

// The staging memory of a consumer's output: its own, or its queries'.
template <bool kIsOverQ>
struct OutputStaging {
    typename OTile::Shared tiles[CONSUMERS];

    __device__ __forceinline__ auto& staged(typename QTile::Shared&, int consumer) {
        return tiles[consumer];
    }
};
template <>
struct OutputStaging<true> {
    __device__ __forceinline__ auto& staged(typename QTile::Shared& q, int) {
        return reinterpret_cast<typename OTile::Shared&>(q);
    }
};

using Pipelines =
    AttentionPipelines<Operands, Task, CONSUMERS, STAGES, QUERY_BUFFERS, Span::Sharing>;

// Base classes, because an empty base takes no bytes.
struct SharedMemory : Pipelines, OutputStaging<O_OVER_Q> {};

}  // namespace tmaasync::kernels::attention
