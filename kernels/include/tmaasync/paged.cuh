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

// The pages of consecutive boxes of kBoxRows keys, looked up together: the latency of one look-up
// counts, not of each.
template <int kCount, int kBoxRows>
struct PagesAhead {
    i32 pages[kCount];

    template <int kPageSize>
    __device__ __forceinline__ static PagesAhead of(
        const PagedSequence<kPageSize>& keys, i32 first_key
    ) {
        PagesAhead found;
#pragma unroll
        for (int i = 0; i < kCount; ++i) found.pages[i] = keys.page_of(first_key + i * kBoxRows);
        return found;
    }
};

// How the boxes of a block of keys or values lie in pages: one box in one page. The producer looks
// up kMostAhead pages at once, in as many registers.
template <typename Rows, int kMostAhead>
struct PageBoxes {
    static constexpr int kBoxRows = Rows::box_side(0);
    static constexpr int kBoxColumns = Rows::box_side(2);
    static constexpr int kRowBoxes = Rows::side(0) / kBoxRows;
    static constexpr int kColumnBoxes = Rows::side(2) / kBoxColumns;
    static constexpr int kAhead = kRowBoxes % kMostAhead == 0 ? kMostAhead
                                  : kRowBoxes < kMostAhead    ? kRowBoxes
                                                              : 1;
    using Pages = PagesAhead<kAhead, kBoxRows>;
    static_assert(Rows::kBoxes == kRowBoxes * kColumnBoxes, "boxes of rows and columns");
};

// Load a block of keys or values from its pages. Each box of the tile lies in one page. The first
// pages are a parameter, because the producer looks them up before it waits for the stage. Rows
// beyond the sequence become zeros: the barrier must expect Rows::kBytes.
template <int kMostAhead, typename Rows, int kPageSize>
__device__ __forceinline__ void load_pages(
    const Rows& rows,
    typename Rows::Shared& shared,
    SharedMemBarrier& full,
    const PagedSequence<kPageSize>& keys,
    typename PageBoxes<Rows, kMostAhead>::Pages next,
    i32 page_step,
    i32 head,
    i32 first_key
) {
    using Boxes = PageBoxes<Rows, kMostAhead>;
    static_assert(kPageSize % Boxes::kBoxRows == 0, "a box lies in one page");
#pragma unroll 1
    for (int first = 0; first < Boxes::kRowBoxes; first += Boxes::kAhead) {
        const auto current = next;
        const i32 next_key = first_key + (first + Boxes::kAhead) * Boxes::kBoxRows;
        if constexpr (Boxes::kAhead < Boxes::kRowBoxes) next = Boxes::Pages::of(keys, next_key);
#pragma unroll
        for (int i = 0; i < Boxes::kAhead; ++i) {
            const int row_box = first + i;
            const i32 key = first_key + row_box * Boxes::kBoxRows;
            const auto page_rows = keys.rows_of(current.pages[i], key, page_step);
#pragma unroll
            for (int column_box = 0; column_box < Boxes::kColumnBoxes; ++column_box) {
                rows.async_copy_box(
                    shared, full, page_rows,
                    {column_box * Boxes::kBoxColumns, head, key % kPageSize},
                    column_box * Boxes::kRowBoxes + row_box
                );
            }
        }
    }
}

}  // namespace tmaasync
