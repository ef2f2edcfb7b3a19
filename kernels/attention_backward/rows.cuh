#pragma once

// TMA loads and stores of rows of a sequence's head, in padded or packed arrays.
#include <tmaasync/tmaasync.cuh>

namespace tmaasync::kernels::attention_backward {

// The sequence and head of rows; for padded arrays, the batch entry.
struct HeadRows {
    RaggedSequence sequence;
    i32 entry;
    i32 head;
};

// Load the rows of a tile from `row` of the sequence on, with zeros after its end.
template <typename Tile>
__device__ __forceinline__ void load_rows(
    const Tile& tile,
    typename Tile::Shared& shared,
    SharedMemBarrier& full,
    const HeadRows& of,
    i32 row
) {
    if constexpr (IS_PACKED) {
        tile.async_copy(shared, full, of.sequence, {0, of.head, row});
    } else {
        tile.async_copy(shared, full, {0, of.head, row, of.entry});
    }
}

// Store the rows of a tile; rows after the end of the sequence are dropped.
template <typename Tile>
__device__ __forceinline__ void store_rows(
    const Tile& tile, const typename Tile::Shared& shared, const HeadRows& of, i32 row
) {
    if constexpr (IS_PACKED) {
        tile.async_store(shared, of.sequence, {0, of.head, row});
    } else {
        tile.async_store(shared, {0, of.head, row, of.entry});
    }
}

// Store the rows of a tile, or add them to a padded array.
template <bool kAdds, typename Tile>
__device__ __forceinline__ void put_rows(
    const Tile& tile, const typename Tile::Shared& shared, const HeadRows& of, i32 row
) {
    static_assert(!(kAdds && IS_PACKED), "added to padded arrays alone");
    if constexpr (kAdds) {
        tile.template async_reduce<ReduceOp::kAdd>(shared, {0, of.head, row, of.entry});
    } else {
        store_rows(tile, shared, of, row);
    }
}

}  // namespace tmaasync::kernels::attention_backward
