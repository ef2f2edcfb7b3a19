#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/swizzle.cuh>
#include <tmaasync/tensormap.cuh>
#include <tmaasync/tile_layout.cuh>
#include <tmaasync/tma_issue.cuh>

namespace tmaasync {

using ptx::ReduceOp;

// A side of a tile that is stored: a store writes whole boxes, and so a whole number of them.
template <int kSide, int kBoxSide, int kNextSide>
struct StoredSide {
    static_assert(
        kSide == kNextSide,
        "its boxes do not divide this tile, so that a store or reduction would overwrite what lies "
        "next to it. Give the tile the next legal side, which the third number of StoredSide is"
    );
    static constexpr bool kIsWhole = kSide == kNextSide;
};

template <typename TileShape, typename BoxShape>
struct StoredTile;
template <int... kSides, int... kBoxSides>
struct StoredTile<Shape<kSides...>, Shape<kBoxSides...>> {
    static constexpr bool kIsWhole =
        (StoredSide<kSides, kBoxSides, (kSides + kBoxSides - 1) / kBoxSides * kBoxSides>::
             kIsWhole &&
         ...);
};

// A tensor map together with the shape of its tile; the host generates the type (tile.cuda_type)
// and passes the map. As a kernel parameter: `const __grid_constant__ Tile tile`.
//
// One call moves one tile: the boxes of its TileLayout.
//
// Coordinates count elements, innermost first. One thread issues loads and stores.
//
// With element strides, the sides of tile and box count elements in shared memory.
template <
    typename T,
    typename TileShape,
    typename BoxShape = TileShape,
    Swizzle kSwizzleMode = Swizzle::kNone,
    typename ElementStrides = void>
struct TMATensorTile : TileLayout<T, TileShape, BoxShape, kSwizzleMode, ElementStrides>,
                       EditableTensorMap<TileShape::kRank> {
    using Layout = TileLayout<T, TileShape, BoxShape, kSwizzleMode, ElementStrides>;
    using Layout::box_address, Layout::box_start, Layout::box_step, Layout::boxes;
    using Layout::kAlignment, Layout::kBoxes, Layout::kBytes, Layout::kRank;
    using typename Layout::Shared;
    using EditableTensorMap<TileShape::kRank>::map;
    static constexpr bool kIsBulk = false;

    // Bytes of the tile at these coordinates: constant, even at the array's edges.
    __device__ static constexpr u32 bytes_at(Coordinates<kRank>) { return kBytes; }

    // Load the tile that starts at these coordinates. The barrier must expect kBytes.
    template <int kCtaGroup = 1>
    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        static_assert(kCtaGroup == 1, "cta_group 2 needs sm_100: a load of Hopper serves one CTA");
        check_load(shared, at);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
            tma::load<kRank>(
                box_address(shared, box), map, box_start(at, box), barrier.address(), policy
            );
        }
    }

    // Load box `box` of the tile, in shared-memory order, from these coordinates, which may differ
    // from box_start(). The barrier must expect kBoxBytes.
    __device__ __forceinline__ void async_copy_box(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        int box,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_load(shared, at);
        check_index("box", box, kBoxes);
        tma::load<kRank>(box_address(shared, box), map, at, barrier.address(), policy);
    }

    // Load one box to the same offset in every CTA in the mask.
    __device__ __forceinline__ void async_multicast_load_box(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        int box,
        u16 cta_mask,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_load(shared, at);
        check_cta_mask(cta_mask);
        check_index("box", box, kBoxes);
        tma::load_multicast<kRank>(
            box_address(shared, box), map, at, barrier.address(), cta_mask, policy
        );
    }

    // Load the tile. All lanes of a warp call it, and the lane with `elect` issues it.
    __device__ __forceinline__ void async_copy_elect(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_copy(shared, barrier, at, policy);
    }

    // Load the tile to the same offset in every CTA in the mask. Each must expect kBytes.
    __device__ __forceinline__ void async_multicast_load(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        u16 cta_mask,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        async_multicast_load_partitioned<1>(shared, barrier, at, cta_mask, 0, policy);
    }

    __device__ __forceinline__ void async_multicast_load_elect(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        u16 cta_mask,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_multicast_load(shared, barrier, at, cta_mask, policy);
    }

    // Load share `part` of kParts of the tile for every CTA in the mask: each of kParts CTAs loads
    // its share of the boxes and multicasts it to the cluster. Each CTA must still expect kBytes.
    // If kParts does not divide kBoxes, the last CTAs load fewer boxes, or none.
    template <int kParts>
    __device__ __forceinline__ void async_multicast_load_partitioned(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        u16 cta_mask,
        u32 part,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        constexpr int kShare = (kBoxes + kParts - 1) / kParts;
        check_load(shared, at);
        check_cta_mask(cta_mask);
        check_index("part", part, kParts);
#pragma unroll
        for (int share = 0; share < kShare; ++share) {
            const int box = part * kShare + share;
            if (kBoxes % kParts != 0 && box >= kBoxes) return;
            tma::load_multicast<kRank>(
                box_address(shared, box), map, box_start(at, box), barrier.address(), cta_mask,
                policy
            );
        }
    }

    // Bytes of four rows, which one async_copy_gather4 credits to its barrier.
    static constexpr int kGather4Bytes = 4 * kBytes / TileShape::side(0);

    // Load four rows of a matrix, from this column on, into rows `first` to `first + 3` of the
    // tile. A row outside the matrix, such as -1, becomes fill. The boxes are single rows: one
    // instruction of sm_100 is four instructions per chunk here.
    __device__ __forceinline__ void async_copy_gather4(
        Shared& shared,
        SharedMemBarrier& barrier,
        i32 column,
        const i32 (&rows)[4],
        int first = 0,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        static_assert(kRank == 2 && BoxShape::side(0) == 1, "a gather takes boxes of one row");
        check_load(shared, {column, 0});
        check_range("first", first, 0, TileShape::side(0) - 4);
#pragma unroll
        for (int box = 0; box < 4 * boxes(kRank - 1); ++box) {
            const int chunk = box / 4, row = box % 4;
            tma::load<2>(
                box_address(shared, chunk * boxes(0) + first + row), map,
                {column + chunk * box_step(kRank - 1), rows[row]}, barrier.address(), policy
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
        static_assert(TileShape::side(0) % 4 == 0, "a gathered tile has a multiple of 4 rows");
        for (int first = 0; first < TileShape::side(0); first += 4) {
            const i32 four[4] = {rows[first], rows[first + 1], rows[first + 2], rows[first + 3]};
            async_copy_gather4(shared, barrier, column, four, first, policy);
        }
    }

    // Prefetch the tile into L2.
    __device__ __forceinline__ void prefetch(
        Coordinates<kRank> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_start<T>(at);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
            tma::prefetch<kRank>(map, box_start(at, box), policy);
        }
    }

    // Store the tile, which its boxes must divide; elements outside the array are dropped. No
    // coordinate may be negative. Follow with commit_group(). Ordinary writes to `shared` need
    // fence_async_view_proxy() first.
    __device__ __forceinline__ void async_store(
        const Shared& shared, Coordinates<kRank> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        static_assert(StoredTile<TileShape, BoxShape>::kIsWhole, "the boxes divide a stored tile");
        static_assert(ElementBits<T>::kIsStored, "the unpacked type is of loads alone");
        check_store(shared, at);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
            tma::store<kRank>(map, box_start(at, box), box_address(shared, box), policy);
        }
    }

    // Store the tile. All lanes of a warp call it, and the lane with `elect` issues it. Bulk groups
    // belong to the issuing thread: commit and wait in the same thread.
    __device__ __forceinline__ void async_store_elect(
        const Shared& shared,
        Coordinates<kRank> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_store(shared, at, policy);
    }

    // Reduce the tile into global memory, with the arithmetic of the map's type.
    template <ReduceOp kOp>
    __device__ __forceinline__ void async_reduce(
        const Shared& shared, Coordinates<kRank> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        static_assert(StoredTile<TileShape, BoxShape>::kIsWhole, "the boxes divide a stored tile");
        check_store(shared, at);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
            tma::reduce<kOp, kRank>(map, box_start(at, box), box_address(shared, box), policy);
        }
    }

    template <ReduceOp kOp>
    __device__ __forceinline__ void async_reduce_elect(
        const Shared& shared,
        Coordinates<kRank> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_reduce<kOp>(shared, at, policy);
    }

    __device__ __forceinline__ static void check_load(
        const Shared& shared, const Coordinates<kRank>& at
    ) {
        check_address("shared", box_address(shared, 0), kAlignment);
        check_start<T>(at);
    }

    __device__ __forceinline__ static void check_store(
        const Shared& shared, const Coordinates<kRank>& at
    ) {
        check_address("shared", box_address(shared, 0), kAlignment);
        check_store_start<T>(at);
    }
};

}  // namespace tmaasync
