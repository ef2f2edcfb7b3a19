#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/swizzle.cuh>
#include <tmaasync/tensormap.cuh>
#include <tmaasync/tma_issue.cuh>

namespace tmaasync {

using ptx::Coordinates;
using ptx::ReduceOp;

// The sides of a tile or a box, outermost first as on the host.
template <int... kSides>
struct Shape {
    static constexpr int kRank = sizeof...(kSides);
    static constexpr int kElements = (kSides * ...);

    __device__ static constexpr int side(int dim) {
        const int sides[kRank] = {kSides...};
        return sides[dim];
    }
};

// The box that one TMA instruction moves.
template <int... kSides>
using Box = Shape<kSides...>;

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

// The element strides of a tile, by default 1 along every side.
template <typename ElementStrides>
struct StrideOf {
    __device__ static constexpr int at(int dim) { return ElementStrides::side(dim); }
};
template <>
struct StrideOf<void> {
    __device__ static constexpr int at(int) { return 1; }
};

// A tensor map together with the shape of its tile; the host generates the type (tile.cuda_type)
// and passes the map. As a kernel parameter: `const __grid_constant__ Tile tile`.
//
// One call moves one tile, which is ceil(tile / box) boxes along each side. In shared memory the
// boxes lie back to back, and the innermost side of the box grid varies slowest. Each box is dense
// and then swizzled. If only the last side is split, the layout is [chunks][other sides][chunk].
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
struct TMATensorTile : EditableTensorMap<TileShape::kRank> {
    using EditableTensorMap<TileShape::kRank>::map;
    using Element = T;
    static constexpr Swizzle kSwizzle = kSwizzleMode;
    static constexpr bool kIsBulk = false;
    static constexpr int kRank = TileShape::kRank;
    static_assert(kRank == BoxShape::kRank, "tile and box have one side per dimension");

    // Number of boxes along side `dim`, outermost first.
    __device__ static constexpr int boxes(int dim) {
        return (TileShape::side(dim) + BoxShape::side(dim) - 1) / BoxShape::side(dim);
    }

    __device__ static constexpr int count_boxes() {
        int count = 1;
        for (int dim = 0; dim < kRank; ++dim) {
            count *= boxes(dim);
        }
        return count;
    }

    static constexpr int kBoxes = count_boxes();
    static constexpr int kElements = TileShape::kElements;
    static constexpr int kBoxElements = BoxShape::kElements;
    static constexpr int kBoxBytes = kBoxElements * static_cast<int>(sizeof(T));
    // Bytes that one tile credits to a barrier, including out-of-bounds elements.
    static constexpr int kBytes = kBoxes * kBoxBytes;
    static constexpr int kAlignment = alignment_bytes(kSwizzle);
    static_assert(
        kBoxes == 1 || kBoxBytes % 128 == 0, "each box starts at a multiple of 128 bytes"
    );

    // Extent of the tile along side `dim`, outermost first.
    __device__ static constexpr int side(int dim) { return TileShape::side(dim); }
    __device__ static constexpr int box_side(int dim) { return BoxShape::side(dim); }

    // The distance between boxes, and between tiles, in the array along side `dim`.
    __device__ static constexpr int box_step(int dim) {
        return BoxShape::side(dim) * StrideOf<ElementStrides>::at(dim);
    }
    __device__ static constexpr int tile_step(int dim) {
        return TileShape::side(dim) * StrideOf<ElementStrides>::at(dim);
    }

    // The tile's buffer in shared memory: declare one per stage.
    struct alignas(kAlignment) Shared {
        static constexpr int kBytes = TMATensorTile::kBytes;  // bytes of a load, without padding
        unsigned char bytes[kBytes];

        __device__ __forceinline__ T* data() { return reinterpret_cast<T*>(bytes); }
        __device__ __forceinline__ const T* data() const {
            return reinterpret_cast<const T*>(bytes);
        }
    };

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

    // The byte offset of an element in shared memory from the start of the tile, which is aligned;
    // the host's tile_offset. The position in the tile is innermost first.
    __device__ __forceinline__ static u32 tile_offset(Coordinates<kRank> position) {
        u32 box = static_cast<u32>(position.values[0]) / box_side(kRank - 1);
        u32 within = 0;
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) {
            const u32 index = position.values[kRank - 1 - dim];
            const u32 part = box_side(dim);
            if (dim < kRank - 1) box = box * boxes(dim) + index / part;
            within = within * part + index % part;
        }
        return swizzled<kSwizzle>((box * kBoxElements + within) * static_cast<u32>(sizeof(T)));
    }

    // The shared address of box `box` of the tile.
    __device__ __forceinline__ static u32 box_address(const Shared& shared, int box) {
        return ptx::shared_address(shared.bytes) + box * kBoxBytes;
    }

    // The coordinates of box `box` in the array. In the box order the last side varies slowest, and
    // the other sides are in row-major order.
    __device__ __forceinline__ static Coordinates<kRank> box_start(Coordinates<kRank> at, int box) {
#pragma unroll
        for (int dim = kRank - 2; dim >= 0; --dim) {
            at.values[kRank - 1 - dim] += box % boxes(dim) * box_step(dim);
            box /= boxes(dim);
        }
        at.values[0] += box * box_step(kRank - 1);
        return at;
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

// A tile of a one-dimensional array without a tensor map; the length is any multiple of 16 bytes.
// The last tile is shorter, so the expected bytes depend on the start of the tile.
template <typename T, int kTileElements>
struct BulkTile {
    using Element = T;
    static constexpr bool kIsBulk = true;
    static constexpr int kRank = 1;
    static constexpr int kElements = kTileElements;
    static constexpr int kBytes = kTileElements * static_cast<int>(sizeof(T));
    static_assert(kBytes % 16 == 0, "bulk copies move multiples of 16 bytes");

    struct alignas(128) Shared {
        static constexpr int kBytes = BulkTile::kBytes;
        unsigned char bytes[kBytes];
    };

    T* global;
    i64 elements;

    // Does nothing; it exists so that one kernel can take both kinds of tile.
    __device__ __forceinline__ void prefetch_descriptor() const {}

    // Bytes of the tile that starts at this element.
    __device__ __forceinline__ u32 bytes_at(i64 element) const {
        const i64 left = (elements - element) * static_cast<i64>(sizeof(T));
        return static_cast<u32>(left < kBytes ? left : kBytes);
    }

    // Load the tile that starts at this element. The barrier must expect bytes_at(element).
    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        i64 element,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_copy(shared, element);
        tma::load_bulk(
            ptx::shared_address(shared.bytes), global + element, bytes_at(element),
            barrier.address(), policy
        );
    }

    // Store the tile. Follow with commit_group().
    __device__ __forceinline__ void async_store(
        const Shared& shared, i64 element, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_copy(shared, element);
        tma::store_bulk(
            global + element, ptx::shared_address(shared.bytes), bytes_at(element), policy
        );
    }

private:
    __device__ __forceinline__ void check_copy(const Shared& shared, i64 element) const {
        check_address("shared", ptx::shared_address(shared.bytes), kGranuleBytes);
        check_index("element", element, elements);
        check_address("global + element", reinterpret_cast<u64>(global + element), kGranuleBytes);
        check_multiple("bytes_at(element)", bytes_at(element), kGranuleBytes);
    }
};

}  // namespace tmaasync
