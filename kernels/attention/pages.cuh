#pragma once

// Where the keys and values of a sequence lie: one after the other, or in pages.
#include <tmaasync/tmaasync.cuh>

namespace tmaasync {

// The keys of a packed sequence, in pages of kPageSize rows anywhere in the array.
template <int kPageSize>
struct PagedSequence {
    i32 start;  // what the running sum says
    i32 length;
    const i32* pages;  // their numbers

    // The page of a key; any page of the array behind the last one.
    __device__ __forceinline__ i32 page_of(i32 key) const {
        return key < length ? pages[key / kPageSize] : 0;
    }

    // What the sequence has of the page of a key: none behind the last one.
    __device__ __forceinline__ RaggedSequence rows_of(i32 page, i32 key, i32 page_step) const {
        const i32 first = key / kPageSize * kPageSize;
        return {page * page_step, min(max(length - first, 0), kPageSize)};
    }
};

template <int kPageSize>
struct KeysIn {
    using type = PagedSequence<kPageSize>;
};
template <>
struct KeysIn<0> {
    using type = RaggedSequence;
};

using Keys = typename KeysIn<PAGE_SIZE>::type;

// Loads a block of keys or values from the pages that it lies in. Each box of the tile is of one
// page, and the first page is known: it was read while nothing waited for it. What lies behind the
// sequence becomes zeros, so that the bytes are always those of a block.
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
    constexpr int kParts = Rows::side(0) / kBoxRows;
    constexpr int kChunks = Rows::side(2) / kBoxColumns;
    static_assert(
        Rows::kBoxes == kParts * kChunks && kPageSize % kBoxRows == 0, "a box lies in one page"
    );
    full.expect_bytes(Rows::kBytes);
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
        const i32 key = first_key + part * kBoxRows;
        const auto of_page = keys.rows_of(page, key, page_step);
        page = keys.page_of(key + kBoxRows);
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            rows.async_copy_box(
                shared, full, of_page, {chunk * kBoxColumns, head, key % kPageSize},
                chunk * kParts + part
            );
        }
    }
}

}  // namespace tmaasync
