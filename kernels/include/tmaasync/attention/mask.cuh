#pragma once

#include <tmaasync/attention/softmax.cuh>
#include <tmaasync/fragment.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/warp.cuh>

// Masks of attention: which blocks of keys the rows of a tile see, and which columns of a block.
namespace tmaasync {

// The blocks of keys that some rows see, visited from the last to the first. Blocks from
// `unmasked_first` to before `unmasked_end` are visible in full to every row; the others need a
// mask.
struct KeyBlocks {
    i32 first;
    i32 end;
    i32 unmasked_first;
    i32 unmasked_end;

    __device__ __forceinline__ i32 count() const { return max(end - first, 0); }
    __device__ __forceinline__ bool is_unmasked(i32 block) const {
        return unmasked_first <= block && block < unmasked_end;
    }

    // The same blocks for fewer rows, which see the blocks `own`: fewer blocks need a mask.
    __device__ __forceinline__ KeyBlocks for_rows(const KeyBlocks& own) const {
        KeyBlocks blocks = *this;
        blocks.unmasked_end = min(max(own.unmasked_end, first), end);
        blocks.unmasked_first = min(max(own.unmasked_first, first), blocks.unmasked_end);
        return blocks;
    }

    // The same blocks, each with a mask: for a mask that a user computes key by key.
    __device__ __forceinline__ KeyBlocks all_masked() const { return {first, end, first, first}; }
};

// The columns of a block that a thread's two rows see, counted from the thread's first column.
struct VisibleColumns {
    i32 first[2];
    i32 end[2];
};

// Replace the scores from `first` to before `end` that a thread's rows do not see.
template <bool kHasFirst, int kScores>
__device__ __forceinline__ void mask_scores(
    float (&scores)[kScores],
    const VisibleColumns& visible,
    float masked = masked_score(),
    int first = 0,
    int end = kScores
) {
#pragma unroll
    for (int i = first; i < end; ++i) {
        const int column = accumulator_column(0, i), half = i / 2 % 2;
        if (column >= visible.end[half]) scores[i] = masked;
        if (kHasFirst && column < visible.first[half]) scores[i] = masked;
    }
}

// The positions of a thread's two rows.
struct RowPositions {
    i32 rows[2];

    // The rows of a consumer warpgroup whose first has position `first`.
    __device__ __forceinline__ static RowPositions from(i32 first) {
        const i32 row = first + accumulator_row(thread_in_warpgroup(), 0);
        return {{row, row + 8}};
    }
};

// Replace every score of a block by function(score, position, key). The block starts with
// `first_key`.
template <int kScores, typename Function>
__device__ __forceinline__ void apply_to_scores(
    float (&scores)[kScores], const RowPositions& positions, i32 first_key, const Function& function
) {
    const i32 key = first_key + accumulator_column(thread_in_warpgroup(), 0);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
        scores[i] = function(scores[i], positions.rows[i / 2 % 2], key + accumulator_column(0, i));
    }
}

// Keys from `first` to before `end`.
struct KeyRange {
    i32 first;
    i32 end;
};

// A sliding window of keys, in blocks of kBlockKeys: the position p of a query sees the keys from
// p + shift - left to p + shift + right. Without kHasLeft or kHasRight that side is open:
// <false, false> sees every key, <false, true> with right = 0 is a causal mask. No position sees
// keys beyond the last.
template <int kBlockKeys, bool kHasLeft, bool kHasRight>
struct WindowMask {
    static constexpr int kKeys = kBlockKeys;

    i32 keys;       // the length of the sequence
    i32 shift = 0;  // keys - queries aligns the last position with the last key, 0 the first ones
    i32 left = 0;
    i32 right = 0;

    // The blocks that `count` positions from `from` on see.
    __device__ __forceinline__ KeyBlocks blocks(i32 from, i32 count) const {
        const i32 to = from + count - 1;
        KeyBlocks blocks{0, count_tiles(keys, kBlockKeys), 0, keys / kBlockKeys};
        if constexpr (kHasRight) {
            const i32 reach = shift + right + 1;
            blocks.end = min(blocks.end, count_tiles(max(to + reach, 0), kBlockKeys));
            blocks.unmasked_end = min(blocks.unmasked_end, max(from + reach, 0) / kBlockKeys);
        }
        if constexpr (kHasLeft) {
            const i32 reach = shift - left;
            blocks.first = max(from + reach, 0) / kBlockKeys;
            blocks.unmasked_first = count_tiles(max(to + reach, 0), kBlockKeys);
        }
        return blocks;
    }

    // The keys that a position sees; the first may be below 0, and counts only with kHasLeft.
    __device__ __forceinline__ KeyRange keys_of(i32 position) const {
        const i32 own = position + shift;
        i32 end = keys;
        if constexpr (kHasRight) end = min(end, own + right + 1);
        return {own - left, end};
    }

    // Mask a block of scores of one row, which the thread has whole.
    template <int kScores>
    __device__ __forceinline__ void mask_row(
        float (&scores)[kScores], i32 position, i32 block
    ) const {
        const KeyRange seen = keys_of(position);
        const i32 first_key = block * kBlockKeys;
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            if (first_key + i >= seen.end) scores[i] = masked_score();
            if (kHasLeft && first_key + i < seen.first) scores[i] = masked_score();
        }
    }

    // Mask a block of scores.
    template <int kScores>
    __device__ __forceinline__ void mask(
        float (&scores)[kScores], const RowPositions& positions, i32 block
    ) const {
        const i32 first_column = block * kBlockKeys + accumulator_column(thread_in_warpgroup(), 0);
        VisibleColumns visible;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const KeyRange seen = keys_of(positions.rows[half]);
            visible.end[half] = seen.end - first_column;
            visible.first[half] = seen.first - first_column;
        }
        mask_scores<kHasLeft>(scores, visible);
    }
};

}  // namespace tmaasync
