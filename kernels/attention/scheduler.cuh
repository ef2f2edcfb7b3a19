#pragma once

// Which tiles of queries a CTA works on, and which blocks of keys each of them sees.
//
// A tile is kTileRows rows of one CTA: HEADS_PER_TILE heads of each of kTilePositions positions.
// The heads of a tile share their keys. The CTAs of a cluster work on a span, which is CLUSTER
// neighbouring tiles, and all walk the blocks that any of them sees.
#include "config.cuh"
#include "pages.cuh"

namespace tmaasync {

struct Problem {
    i32 batch;
    i32 heads;
    i32 heads_per_kv_head;
    i32 queries;          // positions of an entry; of packed ones, rows of the array
    i32 keys;             // the same of keys
    i32 left;             // a position sees so many keys before its own
    i32 right;            // and so many behind it
    i32 is_bottom_right;  // the last position's own key is the last; else the first's the first
    float scale;          // of a score before softcap's tanh
    float scale_log2;     // of a score, in the exponent of 2
    i32 page_step;        // rows of keys from one page to the next
};

// Which of a span's tiles is this CTA's.
__device__ __forceinline__ i32 rank_in_span() {
    if constexpr (CLUSTER == 1) return 0;
    return block_rank_in_cluster();
}

// One entry of a batch: a slice of padded arrays, or a stretch of packed ones.
struct Entry {
    i32 index;
    RaggedSequence queries;
    Keys keys;
};

// Blocks of keys of some rows, walked from the last to the first. Those from `whole_first` to
// before `whole_end` are visible to every row in full, those beside them in part.
struct KeyBlocks {
    i32 first;
    i32 end;
    i32 whole_first;
    i32 whole_end;

    __device__ __forceinline__ i32 count() const { return max(end - first, 0); }
    __device__ __forceinline__ bool is_whole(i32 block) const {
        return whole_first <= block && block < whole_end;
    }
};

// Some of the blocks of a tile's keys. The sums of such a part have a place of their own, and
// attention_combine.cu adds up those of a tile.
struct PartOfKeys {
    i32 first = 0;
    i32 end = 0x7fffffff;
    i32 place = -1;  // negative where the tile is worked on in one piece
};

// Which blocks of its keys a tile is worked on with: all, or, where keys are split, some.
template <bool kMayBeFew>
struct KeysOfTile {
    __device__ static KeysOfTile of(const PartOfKeys&) { return {}; }
    __device__ static constexpr bool is_part() { return false; }
    __device__ static constexpr i32 place() { return -1; }
    __device__ static KeyBlocks among(const KeyBlocks& blocks) { return blocks; }
};

template <>
struct KeysOfTile<true> {
    PartOfKeys part;

    __device__ __forceinline__ static KeysOfTile of(const PartOfKeys& part) { return {part}; }
    __device__ __forceinline__ bool is_part() const { return part.place >= 0; }
    __device__ __forceinline__ i32 place() const { return part.place; }
    __device__ __forceinline__ KeyBlocks among(KeyBlocks blocks) const {
        blocks.first = max(blocks.first, part.first);
        blocks.end = min(blocks.end, part.end);
        return blocks;
    }
};

struct Tile : KeysOfTile<SPLITS_KEYS> {
    Entry entry;
    i32 head;      // the first of its heads
    i32 position;  // the first of its positions

    // What a position has to be moved by to be that of its own key.
    __device__ __forceinline__ i32 shift(const Problem& problem) const {
        return problem.is_bottom_right ? entry.keys.length - entry.queries.length : 0;
    }

    // The blocks that the cluster walks, for all its rows.
    __device__ __forceinline__ KeyBlocks blocks(const Problem& problem) const {
        const i32 from = position - rank_in_span() * kTilePositions;
        return among(blocks_of(problem, from, from + kSpanPositions - 1));
    }

    // Those up to the last that the tile sees; the ones that are whole for the rows of a group
    // alone.
    __device__ __forceinline__ KeyBlocks blocks(const Problem& problem, int group) const {
        KeyBlocks mine = blocks(problem);
        if constexpr (kSkipsBlocks) {
            const auto seen = blocks_of(problem, position, position + kTilePositions - 1);
            mine.end = min(mine.end, max(seen.end, mine.first));
        }
        const i32 from = position + group * kGroupPositions;
        const auto whole = blocks_of(problem, from, from + kGroupPositions - 1);
        mine.whole_end = min(max(whole.whole_end, mine.first), mine.end);
        mine.whole_first = min(max(whole.whole_first, mine.first), mine.whole_end);
        return mine;
    }

private:
    __device__ __forceinline__ KeyBlocks blocks_of(const Problem& problem, i32 from, i32 to) const {
        const i32 keys = entry.keys.length;
        KeyBlocks blocks{0, ceil_div(keys, BLOCK_N), 0, keys / BLOCK_N};
        if constexpr (HAS_RIGHT) {
            const i32 reach = shift(problem) + problem.right + 1;
            blocks.end = min(blocks.end, ceil_div(max(to + reach, 0), BLOCK_N));
            blocks.whole_end = min(blocks.whole_end, max(from + reach, 0) / BLOCK_N);
        }
        if constexpr (HAS_LEFT) {
            const i32 reach = shift(problem) - problem.left;
            blocks.first = max(from + reach, 0) / BLOCK_N;
            blocks.whole_first = ceil_div(max(to + reach, 0), BLOCK_N);
        }
        return blocks;
    }
};

// Of padded arrays, all entries of which are alike. The host says what each cluster takes in each
// round where a mask makes spans differ, or where keys are split; else they are taken head by head.
// The last span of a head may have a tile behind the queries: its CTA's loads are needed, and TMA
// stores nothing of it.
struct PaddedWalk {
    // What a cluster takes where keys are split.
    struct alignas(16) Piece {
        i32 span;  // negative where there is none left
        PartOfKeys keys;
    };

    const Problem& problem;
    const void* order;  // of spans, or of pieces
    i32 rounds;
    i32 spans_per_head;

    __device__ PaddedWalk(const Problem& of, const void* order, i32 rounds)
        : problem(of),
          order(order),
          rounds(rounds),
          spans_per_head(ceil_div(of.queries, kSpanPositions)) {}

    // The number of the first span or piece, and of the one of a round; negative where there is
    // none left.
    __device__ __forceinline__ i32 first() const { return next(0); }
    __device__ __forceinline__ i32 next(i32 round) const {
        const u32 place = (round * gridDim.x + blockIdx.x) / CLUSTER;
        if constexpr (SPLITS_KEYS) {
            return round < rounds && pieces()[place].span >= 0 ? static_cast<i32>(place) : -1;
        } else if constexpr (HAS_LEFT || HAS_RIGHT) {
            return round < rounds ? static_cast<const i32*>(order)[place] : -1;
        } else {
            const i32 span = place;
            return span < problem.batch * problem.heads / HEADS_PER_TILE * spans_per_head ? span
                                                                                          : -1;
        }
    }

    // This CTA's tile.
    __device__ __forceinline__ Tile tile(i32 index) const {
        if constexpr (!SPLITS_KEYS) return tile_of(index, rank_in_span());
        const Piece& piece = pieces()[index];
        return tile_of(piece.span, rank_in_span(), piece.keys);
    }

    // One of a span's.
    __device__ __forceinline__ Tile tile_of(i32 span, i32 rank, const PartOfKeys& keys = {}) const {
        const i32 heads = problem.heads / HEADS_PER_TILE;
        const i32 head = span / spans_per_head;
        const i32 position = (span % spans_per_head * CLUSTER + rank) * kTilePositions;
        const Entry entry{head / heads, {0, problem.queries}, {0, problem.keys}};
        return {KeysOfTile<SPLITS_KEYS>::of(keys), entry, head % heads * HEADS_PER_TILE, position};
    }

private:
    __device__ __forceinline__ const Piece* pieces() const {
        return static_cast<const Piece*>(order);
    }
};

// Tiles of packed arrays, without their heads, which attention_work makes. They come in sections:
// sequences whose keys, of `heads_at_once` tiles of heads, stay in L2. In a section those that see
// the most keys come first.
struct WorkList {
    struct alignas(16) Item {
        Entry entry;
        i32 position;
        i32 section;       // the first item of its section
        i32 section_size;  // items
    };

    i32 count;
    i32 heads_at_once;  // divides the tiles of heads
    u32 taken;          // by how many CTAs a tile was asked for; 0 again when all are worked off
    Item items[1];
};

// CTAs take the next tile when they are done with one, and ask for it while they still have one.
// Where keys are split, they take one of its `parts`, equal shares of the blocks that it sees.
struct PackedWalk {
    const Problem& problem;
    WorkList& list;
    i32 heads;
    i32 parts;
    i32 tiles;  // or parts of them

    __device__ PackedWalk(const Problem& of, WorkList& list, i32 parts_of_tile)
        : problem(of),
          list(list),
          heads(of.heads / HEADS_PER_TILE),
          parts(SPLITS_KEYS ? parts_of_tile : 1),
          tiles(list.count * heads * parts) {}

    __device__ __forceinline__ i32 first() const {
        const i32 cta = blockIdx.x;
        return cta < tiles ? cta : -1;
    }

    // A CTA asks again until there is none left, so as often as there are tiles: the last one to
    // ask leaves the count as the next launch is to find it.
    __device__ __forceinline__ i32 next(i32) const {
        const i32 tile = gridDim.x + atomicInc(&list.taken, tiles - 1);
        return tile < tiles ? tile : -1;
    }

    __device__ __forceinline__ Tile tile(i32 index) const {
        if constexpr (!SPLITS_KEYS) return tile_of(index);
        const Tile whole = tile_of(index / parts);
        const KeyBlocks seen = whole.blocks(problem);
        const auto share = [&](i32 part) { return seen.first + seen.count() * part / parts; };
        const i32 part = index % parts;
        return tile_of(index / parts, {share(part), share(part + 1), index});
    }

    // In a section, `heads_at_once` after `heads_at_once`.
    __device__ __forceinline__ Tile tile_of(i32 index, const PartOfKeys& keys = {}) const {
        const auto& any = list.items[index / heads];
        const i32 at_once = list.heads_at_once;
        const i32 in_section = index - any.section * heads;
        const i32 turn = in_section / (any.section_size * at_once);
        const i32 in_turn = in_section % (any.section_size * at_once);
        const auto& item = list.items[any.section + in_turn / at_once];
        const i32 head = turn * at_once + in_turn % at_once;
        return {
            KeysOfTile<SPLITS_KEYS>::of(keys), item.entry, head * HEADS_PER_TILE, item.position
        };
    }
};

}  // namespace tmaasync
