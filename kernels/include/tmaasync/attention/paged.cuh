#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ragged.cuh>

// The paged KV cache (PagedAttention): the keys and values of a sequence lie in pages.
namespace tmaasync {

// The array of pages.
struct PageArray {
    i32 step;   // rows from one page to the next
    i32 count;  // pages

    // Clamps a page number to the pages that exist, so that no load leaves the array.
    __device__ __forceinline__ i32 existing(i32 page) const {
        return static_cast<i32>(min(static_cast<u32>(page), static_cast<u32>(count - 1)));
    }
};

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

    // The rows of the sequence in the page of a key; none beyond the last key.
    __device__ __forceinline__ RaggedSequence
    rows_of(i32 page, i32 key, const PageArray& array) const {
        const i32 first = key / kPageSize * kPageSize;
        return {page * array.step, min(max(length - first, 0), kPageSize)};
    }
};

// The pages of consecutive boxes of kBoxRows keys, looked up together: the latency of one look-up
// counts, not of each.
template <int kCount, int kBoxRows>
struct PagesAhead {
    i32 pages[kCount];

    template <int kPageSize>
    __device__ __forceinline__ static PagesAhead of(
        const PagedSequence<kPageSize>& keys, const PageArray& array, i32 first_key
    ) {
        PagesAhead found;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            found.pages[i] = array.existing(keys.page_of(first_key + i * kBoxRows));
        }
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

// Load the boxes of a block from the pages that they lie in. kIsWhole: the sequence has all rows of
// the block, and every box an element of the array.
template <bool kIsWhole, int kMostAhead, typename Rows, int kPageSize>
__device__ __forceinline__ void load_page_boxes(
    const Rows& rows,
    typename Rows::Shared& shared,
    SharedMemBarrier& full,
    const PagedSequence<kPageSize>& keys,
    typename PageBoxes<Rows, kMostAhead>::Pages next,
    const PageArray& array,
    i32 head,
    i32 first_key
) {
    using Boxes = PageBoxes<Rows, kMostAhead>;
#pragma unroll 1
    for (int first = 0; first < Boxes::kRowBoxes; first += Boxes::kAhead) {
        const auto current = next;
        const i32 next_key = first_key + (first + Boxes::kAhead) * Boxes::kBoxRows;
        if constexpr (Boxes::kAhead < Boxes::kRowBoxes) {
            next = Boxes::Pages::of(keys, array, next_key);
        }
#pragma unroll
        for (int i = 0; i < Boxes::kAhead; ++i) {
            const int row_box = first + i;
            const i32 key = first_key + row_box * Boxes::kBoxRows;
            const i32 page = current.pages[i];
            const auto page_rows = kIsWhole ? RaggedSequence{page * array.step, kPageSize}
                                            : keys.rows_of(page, key, array);
            const i32 row = kIsWhole && Boxes::kBoxRows == kPageSize ? 0 : key % kPageSize;
#pragma unroll
            for (int column_box = 0; column_box < Boxes::kColumnBoxes; ++column_box) {
                rows.template async_copy_box<kIsWhole>(
                    shared, full, page_rows, {column_box * Boxes::kBoxColumns, head, row},
                    column_box * Boxes::kRowBoxes + row_box
                );
            }
        }
    }
}

// Load a block of keys or values from its pages. Each box of the tile lies in one page. The first
// pages are a parameter, because the producer looks them up before it waits for the stage. Rows
// beyond the sequence become zeros: the barrier must expect Rows::kBytes.
template <int kMostAhead, typename Rows, int kPageSize>
__device__ __forceinline__ void load_pages(
    const Rows& rows,
    typename Rows::Shared& shared,
    SharedMemBarrier& full,
    const PagedSequence<kPageSize>& keys,
    const typename PageBoxes<Rows, kMostAhead>::Pages& next,
    const PageArray& array,
    i32 head,
    i32 first_key
) {
    static_assert(kPageSize % Rows::box_side(0) == 0, "a box lies in one page");
    if (first_key + Rows::side(0) <= keys.length) {
        load_page_boxes<true, kMostAhead>(rows, shared, full, keys, next, array, head, first_key);
    } else {
        load_page_boxes<false, kMostAhead>(rows, shared, full, keys, next, array, head, first_key);
    }
}

}  // namespace tmaasync
