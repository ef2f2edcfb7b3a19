#pragma once

// The tile schedulers: which tiles of queries a CTA works on, and which blocks of keys each tile
// sees.
//
// A tile is kTileRows rows of one CTA: HEADS_PER_TILE heads of each of kTilePositions positions.
// The heads of a tile share a KV head (GQA packing: FlashAttention's pack_gqa). The CTAs of a
// cluster work on a span, which is CLUSTER neighbouring tiles, and all load the blocks that any of
// them sees.
#include "abi.cuh"
#include "config.cuh"

namespace tmaasync {

using Entry = EntryWith<Keys>;
using WorkList = WorkListWith<Keys>;

// The index of this CTA's tile in the span.
__device__ __forceinline__ i32 rank_in_span() {
    if constexpr (CLUSTER == 1) return 0;
    return block_rank_in_cluster();
}

// Which blocks of its keys a tile is worked on with: all, or with split-KV one split of them.
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
    i32 head;      // the first of its heads
    i32 position;  // the first of its positions

    // Which keys its positions see.
    __device__ __forceinline__ Mask mask(const Problem& problem) const {
        const i32 shift = problem.is_bottom_right ? entry.keys.length - entry.queries.length : 0;
        return {entry.keys.length, shift, problem.left, problem.right};
    }

    // The blocks that the cluster loads, for all rows of the span.
    __device__ __forceinline__ KeyBlocks blocks(const Problem& problem) const {
        const i32 from = position - rank_in_span() * kTilePositions;
        return clip(mask(problem).blocks(from, from + kSpanPositions - 1));
    }

    // The blocks up to the last that the tile sees. Those without a mask are so for the rows of one
    // consumer.
    __device__ __forceinline__ KeyBlocks blocks(const Problem& problem, int consumer) const {
        KeyBlocks mine = blocks(problem);
        if constexpr (kSkipsBlocks) {
            const auto seen = mask(problem).blocks(position, position + kTilePositions - 1);
            mine.end = min(mine.end, max(seen.end, mine.first));
        }
        const i32 from = position + consumer * kConsumerPositions;
        return mine.for_rows(mask(problem).blocks(from, from + kConsumerPositions - 1));
    }

    // The position of a row, which its heads share.
    __device__ __forceinline__ i32 position_of(int row) const {
        return position + row / HEADS_PER_TILE;
    }

    // Whether a row is one of the tile's queries; other rows are not written.
    __device__ __forceinline__ bool is_query(int row) const {
        return position_of(row) < entry.queries.length;
    }
};

// The static persistent scheduler of padded arrays, all entries of which are alike. Where a mask
// makes spans differ, or with split-KV, the host's schedule names what each cluster takes in each
// wave: longest processing time first (LPT, Graham 1969), and hybrid stream-K (Osama et al. 2023),
// whose last wave has split spans. Else clusters take spans head by head. The last span of a head
// may have a tile after the last query: its CTA's share of the loads is needed, and TMA stores
// nothing of it.
struct StaticScheduler {
    const Problem& problem;
    const void* schedule;  // numbers of spans, or ScheduledSpans
    i32 waves;
    i32 spans_per_head;

    __device__ StaticScheduler(const Problem& problem, const void* schedule, i32 waves)
        : problem(problem),
          schedule(schedule),
          waves(waves),
          spans_per_head(ceil_div(problem.queries, kSpanPositions)) {}

    // The index of the first wave's span, or of any wave's; negative if none is left.
    __device__ __forceinline__ i32 first() const { return next(0); }
    __device__ __forceinline__ i32 next(i32 wave) const {
        const u32 index = (wave * gridDim.x + blockIdx.x) / CLUSTER;
        if constexpr (SPLITS_KEYS) {
            return wave < waves && scheduled_spans()[index].span >= 0 ? static_cast<i32>(index)
                                                                      : -1;
        } else if constexpr (HAS_LEFT || HAS_RIGHT) {
            return wave < waves ? static_cast<const i32*>(schedule)[index] : -1;
        } else {
            const i32 span = index;
            return span < problem.batch * problem.heads / HEADS_PER_TILE * spans_per_head ? span
                                                                                          : -1;
        }
    }

    // This CTA's tile.
    __device__ __forceinline__ Tile tile(i32 index) const {
        if constexpr (!SPLITS_KEYS) return tile_of(index, rank_in_span());
        const ScheduledSpan& scheduled = scheduled_spans()[index];
        return tile_of(scheduled.span, rank_in_span(), scheduled.keys);
    }

    // The tile of a span with this rank.
    __device__ __forceinline__ Tile tile_of(i32 span, i32 rank, const KeySplit& keys = {}) const {
        const i32 heads = problem.heads / HEADS_PER_TILE;
        const i32 head = span / spans_per_head;
        const i32 position = (span % spans_per_head * CLUSTER + rank) * kTilePositions;
        const Entry entry{head / heads, {0, problem.queries}, {0, problem.keys}};
        return {KeysOfTile<SPLITS_KEYS>::of(keys), entry, head % heads * HEADS_PER_TILE, position};
    }

private:
    __device__ __forceinline__ const ScheduledSpan* scheduled_spans() const {
        return static_cast<const ScheduledSpan*>(schedule);
    }
};

// The dynamic persistent scheduler of packed sequences (FlashAttention-3's
// DynamicPersistentTileScheduler): a CTA takes its next tile from an atomic tile counter, and does
// so while it still works on one. With split-KV it takes one of the tile's `splits`, which are
// equal shares of the blocks that the tile sees.
struct DynamicScheduler {
    const Problem& problem;
    WorkList& list;
    i32 heads;
    i32 splits;
    i32 tiles;  // or splits of them

    __device__ DynamicScheduler(const Problem& problem, WorkList& list, i32 splits_per_tile)
        : problem(problem),
          list(list),
          heads(problem.heads / HEADS_PER_TILE),
          splits(SPLITS_KEYS ? splits_per_tile : 1),
          tiles(list.count * heads * splits) {}

    __device__ __forceinline__ i32 first() const {
        const i32 cta = blockIdx.x;
        return cta < tiles ? cta : -1;
    }

    // A CTA asks once for every tile that it works on, so that all ask as often as there are tiles:
    // the last to ask wraps the counter to 0, where the next launch needs it.
    __device__ __forceinline__ i32 next(i32) const {
        const i32 tile = gridDim.x + atomicInc(&list.tile_counter, tiles - 1);
        return tile < tiles ? tile : -1;
    }

    __device__ __forceinline__ Tile tile(i32 index) const {
        if constexpr (!SPLITS_KEYS) return tile_of(index);
        const Tile whole = tile_of(index / splits);
        const KeyBlocks seen = whole.blocks(problem);
        const auto begin = [&](i32 split) { return seen.first + seen.count() * split / splits; };
        const i32 split = index % splits;
        return tile_of(index / splits, {begin(split), begin(split + 1), index});
    }

    // Takes a section's tiles in passes of `heads_at_once` heads each.
    __device__ __forceinline__ Tile tile_of(i32 index, const KeySplit& keys = {}) const {
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

}  // namespace tmaasync
