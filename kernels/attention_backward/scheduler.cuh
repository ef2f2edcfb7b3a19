#pragma once

// The tiles of keys of the attention backward, their order, and the queries that attend to them.
// attention_backward.cu explains the constants.
#include <tmaasync/attention/mask.cuh>
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>

#include "abi.cuh"
#include "config.cuh"
#include "query_tiles.cuh"

namespace tmaasync::kernels::attention_backward {

// A tile of keys of one KV head, and the blocks of queries that attend to it, in each of its query
// heads. It is the producer's message to the other warps.
struct KeyTile {
    i32 entry;
    RaggedSequence queries;
    RaggedSequence keys;
    i32 kv_head;
    i32 position;      // first key
    i32 first_tile;    // the workspace number of the first tile of queries of its first head
    KeyBlocks blocks;  // blocks of queries, set by find_blocks()
    i32 direction;     // -1: visit the blocks from last to first

    __device__ __forceinline__ bool exists() const {
        const bool is_within = static_cast<u32>(position) < static_cast<u32>(keys.length);
        return kv_head >= 0 && is_within;
    }

    __device__ __forceinline__ HeadRows rows_of_keys() const { return {keys, entry, kv_head}; }

    __device__ __forceinline__ i32 shift(const BackwardProblem& problem) const {
        return problem.is_bottom_right ? keys.length - queries.length : 0;
    }

    // Set the blocks of queries that attend to a key of the tile. Position p attends to the keys
    // from p + shift - left to p + shift + right.
    __device__ __forceinline__ void find_blocks(const BackwardProblem& problem) {
        const i32 own = position - shift(problem), last = position + kTileKeys - 1 - shift(problem);
        const i32 end = min(position + kTileKeys, keys.length) - shift(problem);
        // A partial last block needs no mask: the log-sum-exp of its missing rows is infinity.
        blocks = {0, count_tiles(queries.length, BLOCK_M), 0, queries.length / BLOCK_M + 1};
        if constexpr (HAS_RIGHT) {
            const i32 first = max(own - problem.right, 0);
            // Else the rows that a partial last block lacks would attend to the tile.
            blocks.first = first < queries.length ? first / BLOCK_M : blocks.end;
            blocks.unmasked_first = count_tiles(max(last - problem.right, 0), BLOCK_M);
        }
        if constexpr (HAS_LEFT) {
            blocks.end = min(blocks.end, count_tiles(max(end + problem.left, 0), BLOCK_M));
            blocks.unmasked_end = max(own + problem.left + 1, 0) / BLOCK_M;
        }
        if (position + kTileKeys > keys.length) blocks.unmasked_end = 0;
    }

    // The tiles of keys to which a block of queries attends.
    __device__ __forceinline__ KeyBlocks seen_by(const BackwardProblem& problem, i32 block) const {
        const WindowMask<kTileKeys, HAS_LEFT, HAS_RIGHT> mask{
            keys.length, shift(problem), problem.left, problem.right
        };
        const i32 first = block * BLOCK_M;
        return mask.blocks(first, min(BLOCK_M, queries.length - first));
    }
};

// A block of queries of one query head. All warps of a CTA visit the blocks of a tile in the same
// order. With STARTS_LAST the order is from the last block to the first, and in each block head by
// head. CTAs with tiles of the same KV head then process the same block at about the same time, and
// share its rows in L2, although a causal mask gives every tile another first block. But the
// longest tiles, which come first, end at different times. With ALTERNATES every other wave of
// tiles runs from the first block to the last: a tile that starts later starts at a later block, so
// that these CTAs process the same block too. With 8 query heads per KV head that is 2 to 11 %
// faster (docs/decisions/attention.md). Without STARTS_LAST the order is head by head, from the
// first block.
struct Visit {
    i32 block;
    i32 head;  // index among the query heads that share the tile's KV head
    i32 direction;

    __device__ __forceinline__ static Visit first(const KeyTile& tile) {
        static_assert(STARTS_LAST || !ALTERNATES, "every other wave starts with the last block");
        const i32 direction = ALTERNATES ? tile.direction : STARTS_LAST ? -1 : 1;
        return {direction < 0 ? tile.blocks.end - 1 : tile.blocks.first, 0, direction};
    }

    // The workspace tile of the block.
    __device__ __forceinline__ i32
    number(const BackwardProblem& problem, const KeyTile& tile) const {
        return tile.first_tile + head * problem.query_tiles + block;
    }

    __device__ __forceinline__ void step(const KeyTile& tile, i32 heads) {
        if constexpr (STARTS_LAST) {
            if (++head < heads) return;
            head = 0;
            block += ALTERNATES ? direction : -1;
        } else {
            if (++block < tile.blocks.end) return;
            block = tile.blocks.first;
            ++head;
        }
    }
};

// The tiles of keys, interleaved over `heads_at_once` heads. With a causal mask the longest tiles
// come first (LPT): more queries attend to them. Some tiles of packed sequences are empty.
struct KeyTiles {
    using Cluster = ClusterShape<>;

    const Sequences& sequences;

    __device__ __forceinline__ int count() const {
        const auto& problem = sequences.problem;
        const i32 per_head =
            IS_PACKED ? packed_end() : problem.batch * count_tiles(problem.keys, kTileKeys);
        return problem.kv_heads * per_head;
    }

    __device__ __forceinline__ KeyTile at(int index) const {
        const auto& problem = sequences.problem;
        if constexpr (IS_PACKED) {
            const i32* cu_seqlens = sequences.cu_seqlens_k;
            const i32 tile = index / problem.kv_heads;
            const i32 entry = entry_of_tile<kTileKeys>(cu_seqlens, sequences.count, tile);
            const i32 first = packed_first(entry);
            const bool has_next = entry + 1 < sequences.count;
            const i32 end = has_next ? packed_first(entry + 1) : packed_end();
            const HeadTile found =
                head_tile(index - first * problem.kv_heads, max(end - first, 1), problem.kv_heads);
            return tile_at(entry, found.line, found, index);
        } else {
            const i32 tiles = count_tiles(problem.keys, kTileKeys);
            const HeadTile found = head_tile(index, tiles, problem.kv_heads * problem.batch);
            const i32 entry = found.line / problem.kv_heads;
            return tile_at(entry, found.line % problem.kv_heads, found, index);
        }
    }

private:
    // The tiles of a head, at most, of all packed sequences.
    __device__ __forceinline__ i32 packed_end() const {
        return sequences.problem.keys / kTileKeys + sequences.problem.batch;
    }

    // The first tile of a packed sequence. Wrong cumulative lengths lead to no other tile.
    __device__ __forceinline__ i32 packed_first(i32 entry) const {
        const i32 first = first_tile_number<kTileKeys>(sequences.cu_seqlens_k, entry);
        return min(max(first, 0), packed_end());
    }

    struct HeadTile {
        i32 line;  // index of the head
        i32 tile;
        i32 within;  // index among the tiles of the heads that are scheduled together
    };

    // The index-th tile of `lines` heads with the same number of tiles.
    __device__ __forceinline__ HeadTile head_tile(i32 index, i32 tiles, i32 lines) const {
        const i32 at_once = sequences.problem.heads_at_once;
        const i32 section = index / (tiles * at_once), within = index % (tiles * at_once);
        const i32 size = min(at_once, lines - section * at_once);
        const i32 tile = within / size;
        return {section * at_once + within % size, TILES_DESCEND ? tiles - 1 - tile : tile, within};
    }

    // In deterministic mode waves are counted from the first tile of the heads that are scheduled
    // together. A head's first tiles then have the same direction: one that visits the last block
    // first would wait until one that visits it last has added to it.
    __device__ __forceinline__ KeyTile
    tile_at(i32 entry, i32 kv_head, const HeadTile& found, i32 index) const {
        KeyTile tile;
        const i32 wave = (IS_DETERMINISTIC ? found.within : index) / i32(gridDim.x);
        tile.direction = wave % 2 == 0 ? -1 : 1;
        tile.entry = entry;
        tile.queries = sequences.queries(entry);
        tile.keys = sequences.keys(entry);
        tile.kv_head = kv_head;
        tile.position = found.tile * kTileKeys;
        const i32 head = kv_head * sequences.problem.heads_per_kv_head;
        tile.first_tile = QueryTiles{sequences}.first(entry, head);
        return tile;
    }
};

}  // namespace tmaasync::kernels::attention_backward
