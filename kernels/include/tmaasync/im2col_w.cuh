#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/swizzle.cuh>
#include <tmaasync/tensormap.cuh>
#include <tmaasync/tile_layout.cuh>
#include <tmaasync/tma_issue.cuh>

namespace tmaasync {

// A tile of pixels along the width of images, with halos: im2col::w and, with kIs128,
// im2col::w::128 of sm_100a and sm_103a. The host's create_tma_tile_im2col_w writes the type.
// Compiled and emulated, not run on a chip.
//
// The tile is (pixels and halos, channels), and in shared memory [chunks][pixels][chunk]. kHalo
// pixels follow the column, or with kIs128 every 32nd pixel. One thread issues.
template <
    typename T,
    int kMapRank,
    bool kIs128,
    int kHalo,
    typename TileShape,
    typename BoxShape,
    Swizzle kSwizzleMode = Swizzle::kNone>
struct TMATensorTileIm2colW : TileLayout<T, TileShape, BoxShape, kSwizzleMode, void> {
    using Layout = TileLayout<T, TileShape, BoxShape, kSwizzleMode, void>;
    using Layout::box_address, Layout::box_step, Layout::boxes, Layout::kAlignment, Layout::kBoxes;
    using typename Layout::Shared;
    static constexpr bool kIsBulk = false;
    static_assert(kMapRank >= 3 && kMapRank <= 5, "images of 1 to 3 spatial dimensions");
    static_assert(boxes(0) == 1, "one box has all pixels of the tile");

    TensorMap map;

    __device__ __forceinline__ void prefetch_descriptor() const { ptx::prefetch_tensormap(&map); }

    // Load the pixels from these coordinates on, {channel, w, [h, [d,]] image}. `width_offset`, at
    // most 31, moves the start and both corners. The barrier must expect kBytes.
    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kMapRank> at,
        u16 width_offset = 0,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_address("shared", box_address(shared, 0), kAlignment);
        check_start<T>(at);
        check_range("width_offset", width_offset, 0, 31);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
            Coordinates<kMapRank> start = at;
            start.values[0] += box * box_step(1);
            tma::load_im2col_w<kMapRank, kIs128>(
                box_address(shared, box), map, start, {kHalo, width_offset}, barrier.address(),
                policy
            );
        }
    }
};

}  // namespace tmaasync
