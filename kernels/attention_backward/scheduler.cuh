#pragma once

// Tiles of keys of the attention backward: which there are, in which order, and which queries see
// them. attention_backward.cu explains the constants.
#include <tmaasync/attention_mask.cuh>
#include <tmaasync/scheduler.cuh>

#include "abi.cuh"
#include "config.cuh"
#include "query_tiles.cuh"

namespace tmaasync {

// A tile of keys of one KV head, and the tiles of queries that see it, of each of its query
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
            const HeadTile found = head_tile(index - first * kv_heads(), end - first, kv_heads());
            return tile_at(entry, found.line, found.tile);
        } else {
            const i32 tiles = count_tiles(problem.keys, kTileKeys);
            const HeadTile found = head_tile(index, tiles, kv_heads() * problem.batch);
            return tile_at(found.line / kv_heads(), found.line % kv_heads(), found.tile);
        }
    }

private:
    struct HeadTile {
        i32 line;  // head
        i32 tile;
    };

    // The index-th tile of `lines` heads with the same number of tiles.
    __device__ __forceinline__ HeadTile head_tile(i32 index, i32 tiles, i32 lines) const {
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
