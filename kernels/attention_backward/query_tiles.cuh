#pragma once

// The sequences of a batch, and their tiles of queries in workspace order. attention_backward.cu
// explains the constants.
#include <tmaasync/ragged.cuh>

#include "abi.cuh"
#include "rows.cuh"

namespace tmaasync::kernels::attention_backward {

// The sequences of a batch: slices of padded arrays, or packed sequences with cumulative lengths. A
// sequence that exceeds the arrays is empty.
struct Sequences {
    const BackwardProblem& problem;
    const i32* cu_seqlens_q;
    const i32* cu_seqlens_k;
    i32 count;  // without sequences from the first that runs backwards on

    __device__ __forceinline__ RaggedSequence queries(i32 entry) const {
        if constexpr (!IS_PACKED) return {0, problem.queries};
        return checked(RaggedSequence::of(cu_seqlens_q, entry), problem.queries);
    }
    __device__ __forceinline__ RaggedSequence keys(i32 entry) const {
        if constexpr (!IS_PACKED) return {0, problem.keys};
        return checked(RaggedSequence::of(cu_seqlens_k, entry), problem.keys);
    }

private:
    __device__ __forceinline__ static RaggedSequence checked(
        const RaggedSequence& rows, i32 total
    ) {
        return rows.is_within(total, total) ? rows : RaggedSequence{0, 0};
    }
};

// The last of `count` entries whose first tile is at or before `tile`.
template <int kRows>
__device__ __forceinline__ i32 entry_of_tile(const i32* cu_seqlens, i32 count, i32 tile) {
    i32 entry = 0;
    for (i32 left = count; left > 1;) {
        const i32 half = left / 2;
        if (first_tile_number<kRows>(cu_seqlens, entry + half) <= tile) entry += half;
        left -= half;
    }
    return entry;
}

// The tiles of queries in workspace order.
struct QueryTiles {
    const Sequences& sequences;

    // A tile that may be empty.
    struct Tile {
        i32 entry;
        i32 head;
        i32 position;  // first position
        RaggedSequence queries;

        // Unsigned: wrong cumulative lengths make positions of any value.
        __device__ __forceinline__ bool exists() const {
            return static_cast<u32>(position) < static_cast<u32>(queries.length);
        }
        __device__ __forceinline__ HeadRows rows() const { return {queries, entry, head}; }
    };

    // The number of the first tile of a head of an entry.
    __device__ __forceinline__ i32 first(i32 entry, i32 head) const {
        const auto& problem = sequences.problem;
        if constexpr (IS_PACKED) {
            return head * problem.query_tiles +
                   first_tile_number<BLOCK_M>(sequences.cu_seqlens_q, entry);
        } else {
            return (entry * problem.heads + head) * problem.query_tiles;
        }
    }

    __device__ __forceinline__ Tile at(i32 number) const {
        const auto& problem = sequences.problem;
        const i32 line = number / problem.query_tiles, tile = number % problem.query_tiles;
        if constexpr (IS_PACKED) {
            const i32* cu_seqlens = sequences.cu_seqlens_q;
            const i32 entry = entry_of_tile<BLOCK_M>(cu_seqlens, sequences.count, tile);
            // Unsigned, because wrong cumulative lengths wrap it around.
            const u32 block = tile - first_tile_number<BLOCK_M>(cu_seqlens, entry);
            return {entry, line, static_cast<i32>(block * BLOCK_M), sequences.queries(entry)};
        } else {
            const i32 entry = line / problem.heads;
            return {entry, line % problem.heads, tile * BLOCK_M, sequences.queries(entry)};
        }
    }
};

}  // namespace tmaasync::kernels::attention_backward
