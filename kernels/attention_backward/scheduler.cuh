#pragma once

// Tiles of keys and of queries of the attention backward: which there are, which see each other,
// and where the workspace has them. attention_backward.cu explains the constants.
#include <tmaasync/attention_mask.cuh>
#include <tmaasync/scheduler.cuh>

#include "abi.cuh"
#include "config.cuh"
#include "rows.cuh"

namespace tmaasync {

// The sequences of a batch: slices of padded arrays, or what cumulative lengths describe. A
// sequence that the arrays do not have is empty.
struct Sequences {
    const BackwardProblem& problem;
    const i32* cu_seqlens_q;
    const i32* cu_seqlens_k;

    __device__ __forceinline__ RaggedSequence queries(i32 entry) const {
        if constexpr (!IS_PACKED) return {0, problem.queries};
        return checked(RaggedSequence::of(cu_seqlens_q, entry), problem.queries);
    }
    __device__ __forceinline__ RaggedSequence keys(i32 entry) const {
        if constexpr (!IS_PACKED) return {0, problem.keys};
        return checked(RaggedSequence::of(cu_seqlens_k, entry), problem.keys);
    }

    __device__ __forceinline__ static bool is_within(const RaggedSequence& rows, i32 total) {
        return rows.start >= 0 && rows.length >= 0 && rows.length <= total &&
               rows.start <= total - rows.length;
    }

private:
    __device__ __forceinline__ static RaggedSequence checked(
        const RaggedSequence& rows, i32 total
    ) {
        return is_within(rows, total) ? rows : RaggedSequence{0, 0};
    }
};

// Whatever the lengths, the number of a sequence's first tile: the next sequence's is at least as
// many higher as this one has tiles, so that no prefix sum of tiles is needed.
template <int kRows>
__device__ __forceinline__ i32 first_tile(const i32* cu_seqlens, i32 entry) {
    return cu_seqlens[entry] / kRows + entry;
}

// The last of `batch` entries whose first tile is not after this one.
template <int kRows>
__device__ __forceinline__ i32 entry_of_tile(const i32* cu_seqlens, i32 batch, i32 tile) {
    i32 entry = 0;
    for (i32 end = batch; end - entry > 1;) {
        const i32 middle = (entry + end) / 2;
        (first_tile<kRows>(cu_seqlens, middle) <= tile ? entry : end) = middle;
    }
    return entry;
}

// --- tiles of queries ----------------------------------------------------------------------------

// The tiles of queries in the order of the workspace.
struct QueryTiles {
    const Sequences& sequences;

    // A tile that may be empty.
    struct Tile {
        i32 entry;
        i32 head;
        i32 position;  // the first of its positions
        RaggedSequence queries;

        __device__ __forceinline__ bool exists() const {
            return position >= 0 && position < queries.length;
        }
        __device__ __forceinline__ HeadRows rows() const { return {queries, entry, head}; }
    };

    // Tiles of a head, those of all packed sequences together.
    __device__ __forceinline__ i32 per_head() const {
        const auto& problem = sequences.problem;
        if constexpr (IS_PACKED) return problem.queries / BLOCK_M + problem.batch;
        return count_tiles(problem.queries, BLOCK_M);
    }

    // The number of the first tile of a head of an entry.
    __device__ __forceinline__ i32 first(i32 entry, i32 head) const {
        if constexpr (IS_PACKED) {
            return head * per_head() + first_tile<BLOCK_M>(sequences.cu_seqlens_q, entry);
        } else {
            return (entry * sequences.problem.heads + head) * per_head();
        }
    }

    __device__ __forceinline__ Tile at(i32 number) const {
        const i32 line = number / per_head(), tile = number % per_head();
        if constexpr (IS_PACKED) {
            const i32* cu_seqlens = sequences.cu_seqlens_q;
            const i32 entry = entry_of_tile<BLOCK_M>(cu_seqlens, sequences.problem.batch, tile);
            const i32 block = tile - first_tile<BLOCK_M>(cu_seqlens, entry);
            return {entry, line, block * BLOCK_M, sequences.queries(entry)};
        } else {
            const i32 heads = sequences.problem.heads;
            return {line / heads, line % heads, tile * BLOCK_M, sequences.queries(line / heads)};
        }
    }
};

// --- tiles of keys -------------------------------------------------------------------------------

// A tile of keys of one KV head, and the tiles of queries that see it: those of each of its query
// heads. The message from the producer to the other warps.
struct KeyTile {
    i32 entry;
    RaggedSequence queries;
    RaggedSequence keys;
    i32 kv_head;
    i32 position;      // the first of its keys
    i32 first_tile;    // the workspace number of the first tile of queries of its first head
    KeyBlocks blocks;  // of queries

    __device__ __forceinline__ bool exists() const {
        return kv_head >= 0 && position >= 0 && position < keys.length;
    }

    __device__ __forceinline__ HeadRows rows_of_keys() const { return {keys, entry, kv_head}; }

    __device__ __forceinline__ i32 shift(const BackwardProblem& problem) const {
        return problem.is_bottom_right ? keys.length - queries.length : 0;
    }

    // Sets the blocks of queries that see a key of the tile. Position p sees keys from
    // p + shift - left to p + shift + right.
    __device__ __forceinline__ void find_blocks(const BackwardProblem& problem) {
        const i32 own = position - shift(problem), last = position + kTileKeys - 1 - shift(problem);
        const i32 end = min(position + kTileKeys, keys.length) - shift(problem);
        blocks = {0, count_tiles(queries.length, BLOCK_M), 0, queries.length / BLOCK_M + 1};
        if constexpr (HAS_RIGHT) {
            blocks.first = max(own - problem.right, 0) / BLOCK_M;
            blocks.unmasked_first = count_tiles(max(last - problem.right, 0), BLOCK_M);
        }
        if constexpr (HAS_LEFT) {
            blocks.end = min(blocks.end, count_tiles(max(end + problem.left, 0), BLOCK_M));
            blocks.unmasked_end = max(own + problem.left + 1, 0) / BLOCK_M;
        }
        if (position + kTileKeys > keys.length) blocks.unmasked_end = 0;
    }

    // The tiles of keys that a block of queries sees.
    __device__ __forceinline__ KeyBlocks seen_by(const BackwardProblem& problem, i32 block) const {
        const WindowMask<kTileKeys, HAS_LEFT, HAS_RIGHT> mask{
            keys.length, shift(problem), problem.left, problem.right
        };
        const i32 first = block * BLOCK_M;
        return mask.blocks(first, min(BLOCK_M, queries.length - first));
    }
};

// Whether the last tile of keys comes first: in a deterministic schedule with a mask the tiles of
// keys then reach a tile of queries in the order in which they add to its dQ.
constexpr bool kStartsWithLastKeys = IS_DETERMINISTIC && HAS_RIGHT;

// The tiles of keys, of `heads_at_once` heads together; without kStartsWithLastKeys those that the
// most queries see under a causal mask come first (LPT). Some of packed sequences are empty.
struct KeyTiles {
    using Cluster = ClusterShape<>;

    const Sequences& sequences;

    __device__ __forceinline__ i32 kv_heads() const {
        return sequences.problem.heads / sequences.problem.heads_per_kv_head;
    }

    __device__ __forceinline__ int count() const {
        const auto& problem = sequences.problem;
        if constexpr (IS_PACKED) return kv_heads() * (problem.keys / kTileKeys + problem.batch);
        return kv_heads() * problem.batch * count_tiles(problem.keys, kTileKeys);
    }

    __device__ __forceinline__ KeyTile at(int index) const {
        const auto& problem = sequences.problem;
        if constexpr (IS_PACKED) {
            const i32* cu_seqlens = sequences.cu_seqlens_k;
            const i32 tile = index / kv_heads();
            const i32 entry = entry_of_tile<kTileKeys>(cu_seqlens, problem.batch, tile);
            const i32 first = first_tile<kTileKeys>(cu_seqlens, entry);
            const bool is_last = entry + 1 == problem.batch;
            const i32 end = is_last ? problem.keys / kTileKeys + problem.batch
                                    : first_tile<kTileKeys>(cu_seqlens, entry + 1);
            const Place place = place_of(index - first * kv_heads(), end - first, kv_heads());
            return tile_at(entry, place.line, place.tile);
        } else {
            const i32 tiles = count_tiles(problem.keys, kTileKeys);
            const Place place = place_of(index, tiles, kv_heads() * problem.batch);
            return tile_at(place.line / kv_heads(), place.line % kv_heads(), place.tile);
        }
    }

private:
    struct Place {
        i32 line;  // head
        i32 tile;
    };

    // The index-th tile of `lines` heads with the same number of tiles.
    __device__ __forceinline__ Place place_of(i32 index, i32 tiles, i32 lines) const {
        const i32 at_once = sequences.problem.heads_at_once;
        const i32 section = index / (tiles * at_once), within = index % (tiles * at_once);
        const i32 size = min(at_once, lines - section * at_once);
        const i32 tile = within / size;
        return {section * at_once + within % size, kStartsWithLastKeys ? tiles - 1 - tile : tile};
    }

    __device__ __forceinline__ KeyTile tile_at(i32 entry, i32 kv_head, i32 number) const {
        KeyTile tile;
        tile.entry = entry;
        tile.queries = sequences.queries(entry);
        tile.keys = sequences.keys(entry);
        tile.kv_head = kv_head;
        tile.position = number * kTileKeys;
        const i32 head = kv_head * sequences.problem.heads_per_kv_head;
        tile.first_tile = QueryTiles{sequences}.first(entry, head);
        tile.find_blocks(sequences.problem);
        return tile;
    }
};

}  // namespace tmaasync
