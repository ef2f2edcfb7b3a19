#pragma once

// The loads of queries, and of blocks of keys or values, by one thread. attention.cu explains the
// constants.
#include <tmaasync/attention/paged.cuh>

#include "abi.cuh"
#include "scheduler.cuh"

namespace tmaasync::kernels::attention {

// Load the queries of a tile from position `row` on, for each of its heads.
template <typename Rows>
__device__ __forceinline__ void load_rows(
    const Rows& rows,
    typename Rows::Shared& shared,
    SharedMemBarrier& full,
    const Tile& tile,
    i32 row
) {
    if constexpr (IS_PACKED) {
        rows.async_copy(shared, full, tile.entry.queries, {0, tile.head, row});
    } else {
        rows.async_copy(shared, full, {0, tile.head, row, tile.entry.index});
    }
}

// Load a block of keys or values into the next stage of a ring. With kIsTransposed, for FP8 values
// from attention_values.cu, the array's columns are the keys.
template <int kPages, bool kIsTransposed, typename Rows, typename Ring>
__device__ __forceinline__ void load_block(
    const Rows& rows,
    Ring& ring,
    const Problem&,
    const Tile& tile,
    const RaggedSequence& sequence,
    i32 kv_head,
    i32 block
) {
    const i32 row = block * BLOCK_N;
    const auto stage = ring.acquire();
    if constexpr (IS_PACKED) {
        rows.async_copy(*stage, stage.full(), sequence, {0, kv_head, row});
    } else if constexpr (kIsTransposed) {
        stage.async_multicast_load(rows, *stage, {row, 0, kv_head, tile.entry.index});
    } else {
        stage.async_multicast_load(rows, *stage, {0, kv_head, row, tile.entry.index});
    }
}

// The same from a paged KV cache. It looks up the first kPages pages before it waits.
template <int kPages, bool, typename Rows, typename Ring, int kPageSize>
__device__ __forceinline__ void load_block(
    const Rows& rows,
    Ring& ring,
    const Problem& problem,
    const Tile&,
    const PagedSequence<kPageSize>& sequence,
    i32 kv_head,
    i32 block
) {
    const PageArray array{problem.page_step, problem.pages};
    const i32 row = block * BLOCK_N;
    const auto pages = PageBoxes<Rows, kPages>::Pages::of(sequence, array, row);
    const auto stage = ring.acquire();
    load_pages<kPages>(rows, *stage, stage.full(), sequence, pages, array, kv_head, row);
}

}  // namespace tmaasync::kernels::attention
