#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ragged.cuh>

// The paged KV cache (PagedAttention): the keys and values of a sequence lie in pages.
namespace tmaasync {

// The keys of a sequence, in pages of kPageSize rows anywhere in the array.
template <int kPageSize>
struct PagedSequence {
    i32 start;  // in the prefix sum of the lengths
    i32 length;
    const i32* pages;  // the sequence's row of the page table

    // The page of a key; beyond the last key, any page of the array.
    __device__ __forceinline__ i32 page_of(i32 key) const {
        return key < length ? pages[key / kPageSize] : 0;
    }

    // The rows of the sequence in the page of a key; none beyond the last key. `page_step` is rows
    // of the array from one page to the next.
    __device__ __forceinline__ RaggedSequence rows_of(i32 page, i32 key, i32 page_step) const {
        const i32 first = key / kPageSize * kPageSize;
        return {page * page_step, min(max(length - first, 0), kPageSize)};
    }
};

// Load a block of keys or values from its pages. Each box of the tile lies in one page. The first
// page is a parameter, because the producer looks it up before it waits for the stage. Rows beyond
// the sequence become zeros: the barrier must expect Rows::kBytes.
template <typename Rows, int kPageSize>
__device__ __forceinline__ void load_pages(
    const Rows& rows,
    typename Rows::Shared& shared,
    SharedMemBarrier& full,
    const PagedSequence<kPageSize>& keys,
    i32 page,
    i32 page_step,
    i32 head,
    i32 first_key
) {
    constexpr int kBoxRows = Rows::box_side(0);
    constexpr int kBoxColumns = Rows::box_side(2);
    constexpr int kRowBoxes = Rows::side(0) / kBoxRows;
    constexpr int kColumnBoxes = Rows::side(2) / kBoxColumns;
    static_assert(
        Rows::kBoxes == kRowBoxes * kColumnBoxes && kPageSize % kBoxRows == 0,
        "a box lies in one page"
    );
#pragma unroll 1
    for (int row_box = 0; row_box < kRowBoxes; ++row_box) {
        const i32 key = first_key + row_box * kBoxRows;
        const auto page_rows = keys.rows_of(page, key, page_step);
        page = keys.page_of(key + kBoxRows);
#pragma unroll
        for (int column_box = 0; column_box < kColumnBoxes; ++column_box) {
            rows.async_copy_box(
                shared, full, page_rows, {column_box * kBoxColumns, head, key % kPageSize},
                column_box * kRowBoxes + row_box
            );
        }
    }
}

}  // namespace tmaasync
