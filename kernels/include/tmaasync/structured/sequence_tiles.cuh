#pragma once

#include <tmaasync/ragged.cuh>
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>

namespace tmaasync {

// The tiles of packed sequences (varlen), of kTileRows rows of a head: sequence by sequence, and in
// each head by head. Tiles of a head run from last to first, so that with a causal mask the tiles
// with the most keys come first. Tile is an aggregate of a RaggedSequence, the head, and the first
// row in the sequence. At most one tile per head of a sequence is empty (has no rows).
template <typename Tile, int kTileRows>
struct SequenceTiles {
    using Cluster = ClusterShape<>;

    const i32* cu_seqlens;
    i32 sequences;
    i32 heads;
    i32 rows;  // of the array

    // An upper bound on the number of tiles, because only the device knows the lengths.
    __device__ __forceinline__ int count() const { return heads * (rows / kTileRows + sequences); }

    __device__ __forceinline__ Tile at(int index) const {
        if (sequences == 0) return {{0, 0}, 0, 0};
        int sequence = 0;
        for (int end = sequences; end - sequence > 1;) {
            const int middle = (sequence + end) / 2;
            (first_tile(middle) <= index ? sequence : end) = middle;
        }
        const auto own = RaggedSequence::of(cu_seqlens, sequence);
        if (!own.is_within(rows, rows)) return {{0, 0}, 0, 0};
        const int first = first_tile(sequence), tiles = (first_tile(sequence + 1) - first) / heads;
        const int head = (index - first) / tiles, before = (index - first) % tiles;
        const int tile = count_tiles(own.length, kTileRows) - 1 - before;
        if (index < first || head >= heads || tile < 0) return {{0, 0}, 0, 0};
        return {own, head, tile * kTileRows};
    }

private:
    // The index of a sequence's first tile.
    __device__ __forceinline__ int first_tile(int sequence) const {
        return heads * first_tile_number<kTileRows>(cu_seqlens, sequence);
    }
};

}  // namespace tmaasync
