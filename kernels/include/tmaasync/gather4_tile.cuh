#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/swizzle.cuh>
#include <tmaasync/tensormap.cuh>
#include <tmaasync/tile_layout.cuh>
#include <tmaasync/tma_issue.cuh>

namespace tmaasync {

// A tile of a matrix whose rows are loaded and stored by number, four in one instruction of sm_100a
// and sm_103a; the host's create_tma_tile_gather4(arch="sm_100a") writes the type. On Hopper a
// TMATensorTile has the loads, row by row. Compiled and emulated, not run on a chip.
//
// A box is four rows of a chunk in shared memory, and one row in the map. One thread issues.
template <typename T, typename TileShape, typename BoxShape, Swizzle kSwizzleMode = Swizzle::kNone>
struct TMATensorTileGather4 : TileLayout<T, TileShape, BoxShape, kSwizzleMode, void>,
                              EditableTensorMap<2> {
    using Layout = TileLayout<T, TileShape, BoxShape, kSwizzleMode, void>;
    using Layout::box_address, Layout::box_step, Layout::boxes;
    using Layout::kAlignment, Layout::kBoxBytes, Layout::kBytes, Layout::kRank;
    using typename Layout::Shared;
    using EditableTensorMap<2>::map;
    static constexpr bool kIsBulk = false;
    static_assert(kRank == 2 && BoxShape::side(0) == 4, "a box is four rows of a matrix");
    static_assert(TileShape::side(0) % 4 == 0, "a gathered tile has a multiple of 4 rows");

    // Bytes of four rows, which one async_copy_gather4 credits to its barrier.
    static constexpr int kGather4Bytes = boxes(1) * kBoxBytes;

    // Load four rows of the matrix, from this column on, into rows `first` to `first + 3` of the
    // tile, a multiple of 4. A row outside the matrix, such as -1, becomes fill.
    __device__ __forceinline__ void async_copy_gather4(
        Shared& shared,
        SharedMemBarrier& barrier,
        i32 column,
        const i32 (&rows)[4],
        int first = 0,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_start<T>(Coordinates<2>{column, 0});
        check_rows(shared, first);
#pragma unroll
        for (int chunk = 0; chunk < boxes(1); ++chunk) {
            tma::load_rows(
                box_address(shared, chunk * boxes(0) + first / 4), map, column_of(column, chunk),
                rows, barrier.address(), policy
            );
        }
    }

    // Load a whole tile by rows: its row i is row `rows[i]` of the matrix. The barrier must expect
    // kBytes.
    __device__ __forceinline__ void async_copy_gather4_tile(
        Shared& shared,
        SharedMemBarrier& barrier,
        i32 column,
        const i32* rows,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        for (int first = 0; first < TileShape::side(0); first += 4) {
            const i32 four[4] = {rows[first], rows[first + 1], rows[first + 2], rows[first + 3]};
            async_copy_gather4(shared, barrier, column, four, first, policy);
        }
    }

    // Store rows `first` to `first + 3` of the tile, a multiple of 4, to four rows of the matrix,
    // from this column on. Rows after the last one are dropped; none may be negative, and no two
    // may be equal. Follow with commit_group(). Ordinary writes to `shared` need
    // fence_async_view_proxy() first.
    __device__ __forceinline__ void async_store_scatter4(
        const Shared& shared,
        i32 column,
        const i32 (&rows)[4],
        int first = 0,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        static_assert(ElementBits<T>::kIsStored, "the unpacked type is of loads alone");
        for (const i32 row : rows) check_store_start<T>(Coordinates<2>{column, row});
        check_rows(shared, first);
#pragma unroll
        for (int chunk = 0; chunk < boxes(1); ++chunk) {
            tma::store_rows(
                map, column_of(column, chunk), rows,
                box_address(shared, chunk * boxes(0) + first / 4), policy
            );
        }
    }

    // Store a whole tile by rows: its row i becomes row `rows[i]` of the matrix.
    __device__ __forceinline__ void async_store_scatter4_tile(
        const Shared& shared,
        i32 column,
        const i32* rows,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        for (int first = 0; first < TileShape::side(0); first += 4) {
            const i32 four[4] = {rows[first], rows[first + 1], rows[first + 2], rows[first + 3]};
            async_store_scatter4(shared, column, four, first, policy);
        }
    }

private:
    __device__ __forceinline__ static i32 column_of(i32 column, int chunk) {
        return column + chunk * box_step(1);
    }

    __device__ __forceinline__ static void check_rows(const Shared& shared, int first) {
        check_address("shared", box_address(shared, 0), kAlignment);
        check_range("first", first, 0, TileShape::side(0) - 4);
        check_multiple("first", first, 4);
    }
};

}  // namespace tmaasync
