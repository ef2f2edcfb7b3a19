#pragma once

// The tiles of attention, and their schedules.
//
// A tile is kTileRows rows of one CTA: HEADS_PER_TILE heads of each of kTilePositions positions.
// The heads of a tile share a KV head (GQA packing: FlashAttention's pack_gqa). The CTAs of a
// cluster compute a span, which is CLUSTER adjacent tiles, and all of them load the blocks that any
// of them needs.
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/dynamic_scheduler.cuh>
#include <tmaasync/structured/k_range.cuh>
#include <tmaasync/structured/list_scheduler.cuh>
#include <tmaasync/structured/static_scheduler.cuh>

#include "abi.cuh"
#include "batch.cuh"
#include "config.cuh"

namespace tmaasync::kernels::attention {

// The blocks of keys to process for a tile: all, or with split-KV one split.
template <bool kMayBeSplit>
struct KeysOfTile {
    __device__ static KeysOfTile of(const KeySplit&) { return {}; }
    __device__ static constexpr bool is_split() { return false; }
    __device__ static constexpr i32 slot() { return -1; }
    __device__ static KeyBlocks clip(const KeyBlocks& blocks) { return blocks; }
};

template <>
struct KeysOfTile<true> {
    KeySplit split;

    __device__ __forceinline__ static KeysOfTile of(const KeySplit& split) { return {split}; }
    __device__ __forceinline__ bool is_split() const { return split.slot >= 0; }
    __device__ __forceinline__ i32 slot() const { return split.slot; }
    __device__ __forceinline__ KeyBlocks clip(KeyBlocks blocks) const {
        blocks.first = max(blocks.first, split.first);
        blocks.end = min(blocks.end, split.end);
        return blocks;
    }
};

struct Tile : KeysOfTile<SPLITS_KEYS> {
    Entry entry;
    i32 head;      // first head
    i32 position;  // first position

    // The mask of the tile's positions.
    __device__ __forceinline__ Mask mask(const Problem& problem) const {
        const i32 shift = problem.is_bottom_right ? entry.keys.length - entry.queries.length : 0;
        return {entry.keys.length, shift, problem.left, problem.right};
    }

    // The blocks that the cluster loads, for all rows of the span.
    __device__ __forceinline__ KeyBlocks blocks(const Problem& problem) const {
        const i32 from = position - Span::rank_m() * kTilePositions;
        return clip(mask(problem).blocks(from, kSpanPositions));
    }

    // The blocks up to the tile's last one. The unmasked range holds for the rows of one consumer.
    __device__ __forceinline__ KeyBlocks blocks(const Problem& problem, int consumer) const {
        KeyBlocks mine = blocks(problem);
        if constexpr (kTilesDiffer) {
            const auto seen = mask(problem).blocks(position, kTilePositions);
            mine.end = min(mine.end, max(seen.end, mine.first));
        }
        const i32 from = position + consumer * kConsumerPositions;
        return mine.for_rows(mask(problem).blocks(from, kConsumerPositions));
    }

    // The position of a row; the heads of a position have adjacent rows.
    __device__ __forceinline__ i32 position_of(int row) const {
        return position + row / HEADS_PER_TILE;
    }

    // Whether a row is a query of the tile; other rows are not written.
    __device__ __forceinline__ bool is_query(int row) const {
        return position_of(row) < entry.queries.length;
    }
};

// --- padded arrays -------------------------------------------------------------------------------

// The spans of padded arrays, head by head; all entries are alike. The last span of a head may have
// a tile after the last query: the cluster needs its CTA's share of the loads, and TMA stores
// nothing of the tile.
struct PaddedTiles {
    using Cluster = Span;

    const Problem& problem;
    i32 spans_per_head;

    __device__ __forceinline__ explicit PaddedTiles(const Problem& problem)
        : problem(problem), spans_per_head(count_tiles(problem.queries, kSpanPositions)) {}

    __device__ __forceinline__ int count() const {
        return problem.batch * (problem.heads / HEADS_PER_TILE) * spans_per_head;
    }

    // This CTA's tile of a span.
    __device__ __forceinline__ Tile at(i32 span) const { return at(span, Span::rank_m()); }

    // The tile of a span with this rank.
    __device__ __forceinline__ Tile at(i32 span, i32 rank, const KeySplit& keys = {}) const {
        const i32 heads = problem.heads / HEADS_PER_TILE;
        const i32 head = span / spans_per_head;
        const i32 position = (span % spans_per_head * CLUSTER + rank) * kTilePositions;
        const Entry entry{head / heads, {0, problem.queries}, {0, problem.keys}};
        return {KeysOfTile<SPLITS_KEYS>::of(keys), entry, head % heads * HEADS_PER_TILE, position};
    }
};

// The host's schedule with split-KV: the span of each cluster in each wave. Hybrid stream-K (Osama
// et al. 2023), whose last wave has split spans.
struct SplitScheduler : Schedule<SplitScheduler> {
    PaddedTiles tiles;
    const ScheduledSpan* table;  // [waves][clusters]
    i32 end;                     // end of the table
    i32 index = Span::index();

    __device__ __forceinline__ SplitScheduler(
        const PaddedTiles& tiles, const void* table, i32 waves
    )
        : tiles(tiles),
          table(static_cast<const ScheduledSpan*>(table)),
          end(waves * Span::count()) {}

    __device__ __forceinline__ bool done() const { return index >= end || table[index].span < 0; }
    __device__ __forceinline__ void step() { index += Span::count(); }
    __device__ __forceinline__ Tile tile() const {
        return tiles.at(table[index].span, Span::rank_m(), table[index].keys);
    }
};

// The scheduler of padded arrays: the host's `table` of `waves` if a mask makes spans differ, or
// with split-KV; else a static scheduler.
__device__ __forceinline__ auto padded_schedule(
    const Problem& problem, const void* table, i32 waves
) {
    const PaddedTiles tiles(problem);
    if constexpr (SPLITS_KEYS) {
        return SplitScheduler(tiles, table, waves);
    } else if constexpr (HAS_LEFT || HAS_RIGHT) {
        return ListScheduler<PaddedTiles>(tiles, static_cast<const i32*>(table), waves);
    } else {
        return StaticScheduler<PaddedTiles>(tiles);
    }
}

// --- packed sequences ----------------------------------------------------------------------------

// The tiles of a work list: each section's tiles in passes of `heads_at_once` tiles of heads.
struct ListedTiles {
    const WorkList& list;
    i32 heads;  // number of tiles of heads

    __device__ __forceinline__ ListedTiles(const Problem& problem, const WorkList& list)
        : list(list), heads(problem.heads / HEADS_PER_TILE) {}

    __device__ __forceinline__ i32 count() const { return list.count * heads; }

    __device__ __forceinline__ Tile at(i32 index, const KeySplit& keys = {}) const {
        const auto& any = list.items[index / heads];
        const i32 at_once = list.heads_at_once;
        const i32 in_section = index - any.section * heads;
        const i32 pass = in_section / (any.section_size * at_once);
        const i32 in_pass = in_section % (any.section_size * at_once);
        const auto& item = list.items[any.section + in_pass / at_once];
        const i32 head = pass * at_once + in_pass % at_once;
        return {
            KeysOfTile<SPLITS_KEYS>::of(keys), item.entry, head * HEADS_PER_TILE, item.position
        };
    }
};

// The tiles of sequences with at most kTilePositions queries, as in decode: one per tile of heads.
struct SequencesAsTiles {
    const Problem& problem;
    const Batch& batch;
    i32 heads;  // tiles of them

    __device__ __forceinline__ SequencesAsTiles(const Problem& problem, const Batch& batch)
        : problem(problem), batch(batch), heads(problem.heads / HEADS_PER_TILE) {}

    __device__ __forceinline__ i32 count() const { return problem.batch * heads; }

    __device__ __forceinline__ Tile at(i32 index, const KeySplit& keys = {}) const {
        Entry entry = entry_of(batch, problem, index / heads).entry;
        if (entry.queries.length == 0) entry.keys.length = 0;
        return {KeysOfTile<SPLITS_KEYS>::of(keys), entry, index % heads * HEADS_PER_TILE, 0};
    }
};

// The tiles of packed sequences. With split-KV a tile has `splits`, which are equal shares of its
// blocks.
template <typename Tiles>
struct PackedTiles {
    using Cluster = ClusterShape<>;

    const Problem& problem;
    Tiles tiles;
    i32 splits;

    __device__ __forceinline__ PackedTiles(
        const Problem& problem, const Tiles& tiles, i32 splits_per_tile
    )
        : problem(problem), tiles(tiles), splits(SPLITS_KEYS ? splits_per_tile : 1) {}

    // The number of tiles, or of splits.
    __device__ __forceinline__ int count() const { return tiles.count() * splits; }

    __device__ __forceinline__ Tile at(i32 index) const {
        if constexpr (!SPLITS_KEYS) return tiles.at(index);
        const KeyBlocks seen = tiles.at(index / splits).blocks(problem);
        const auto begin = [&](i32 split) {
            return seen.first + start_of_share(seen.count(), split, splits);
        };
        const i32 split = index % splits;
        return tiles.at(index / splits, {begin(split), begin(split + 1), index});
    }
};

// All tiles of packed sequences, without splits.
__device__ __forceinline__ auto packed_tiles(
    const Problem& problem, const void* list, const Batch& batch
) {
    if constexpr (ONE_TILE_EACH) {
        return SequencesAsTiles(problem, batch);
    } else {
        return ListedTiles(problem, *static_cast<const WorkList*>(list));
    }
}

__device__ __forceinline__ auto packed_schedule(
    const Problem& problem, void* list, const Batch& batch, i32 splits_per_tile
) {
    using Tiles = PackedTiles<decltype(packed_tiles(problem, list, batch))>;
    const Tiles tiles(problem, packed_tiles(problem, list, batch), splits_per_tile);
    if constexpr (ONE_TILE_EACH) {
        return StaticScheduler<Tiles>(tiles);
    } else {
        return DynamicScheduler<Tiles>(tiles, &static_cast<WorkList*>(list)->tile_counter);
    }
}

}  // namespace tmaasync::kernels::attention
