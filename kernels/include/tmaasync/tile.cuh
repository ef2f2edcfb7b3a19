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

// Sides of a tile or of a box, outermost first as on the host.
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

// The element strides of a tile: 1 along every side, or as given.
template <typename ElementStrides>
struct StrideOf {
    __device__ static constexpr int at(int dim) { return ElementStrides::side(dim); }
};
template <>
struct StrideOf<void> {
    __device__ static constexpr int at(int) { return 1; }
};

// A tensor map together with the shape of its tile; the host writes the type (tile.cuda_type)
// and passes the map. As a kernel parameter: `const __grid_constant__ Tile tile`.
//
// One call moves one tile: ceil(tile / box) boxes a side. In shared memory the boxes lie one after
// the other, the innermost side of the box grid outermost, each box dense and then swizzled: with
// only the last side split that is [chunks][other sides][chunk].
//
// Coordinates are elements, innermost first. Loads and stores are issued by one thread.
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

    // Boxes along side `dim`, outermost first.
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
    // The bytes that a barrier is credited for one tile, out-of-bounds elements included.
    static constexpr int kBytes = kBoxes * kBoxBytes;
    static constexpr int kAlignment = alignment_bytes(kSwizzle);
    static_assert(
        kBoxes == 1 || kBoxBytes % 128 == 0, "each box starts at a multiple of 128 bytes"
    );

    // Extent of the tile along side `dim`, outermost first.
    __device__ static constexpr int side(int dim) { return TileShape::side(dim); }
    __device__ static constexpr int box_side(int dim) { return BoxShape::side(dim); }

    // The distance in the array between boxes, and between tiles, along side `dim`.
    __device__ static constexpr int box_step(int dim) {
        return BoxShape::side(dim) * StrideOf<ElementStrides>::at(dim);
    }
    __device__ static constexpr int tile_step(int dim) {
        return TileShape::side(dim) * StrideOf<ElementStrides>::at(dim);
    }

    // The tile's buffer in shared memory: declare one per stage.
    struct alignas(kAlignment) Shared {
        static constexpr int kBytes = TMATensorTile::kBytes;  // that a load brings; padding follows
        unsigned char bytes[kBytes];

        __device__ __forceinline__ T* data() { return reinterpret_cast<T*>(bytes); }
        __device__ __forceinline__ const T* data() const {
            return reinterpret_cast<const T*>(bytes);
        }
    };

    // Bytes of the tile that starts here: the same everywhere, edges included.
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

    // Load one box of the tile, box `box` in shared memory's order, from these coordinates, which
    // need not be where box_start() has it. The barrier must expect kBoxBytes.
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

    // Load one box at the same offset in every CTA in the mask.
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

    // Load the tile, called by all lanes of a warp, of which the lane with `elect` issues it.
    __device__ __forceinline__ void async_copy_elect(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_copy(shared, barrier, at, policy);
    }

    // Load the tile at the same offset in every CTA in the mask. Each must expect kBytes.
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
    // Shares are equal where kParts divides kBoxes; else the last CTAs load less, or nothing.
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

    // Bytes of four rows, which async_copy_gather4 credits to its barrier.
    static constexpr int kGather4Bytes = 4 * kBytes / TileShape::side(0);

    // Load four rows of a matrix, from this column on, into rows `first` to `first + 3` of the
    // tile. A row that the matrix does not have, such as -1, becomes fill. The boxes are single
    // rows: one instruction of sm_100 is four per chunk here.
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

    // Load a whole tile of rows, row i of it from row `rows[i]` of the matrix. The barrier must
    // expect kBytes.
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

    // Bring the tile into L2.
    __device__ __forceinline__ void prefetch(
        Coordinates<kRank> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_start<T>(at);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
            tma::prefetch<kRank>(map, box_start(at, box), policy);
        }
    }

    // Store the tile; elements beyond the array are dropped. No coordinate may be negative.
    // Follow with commit_group(). Ordinary writes to `shared` need fence_async_view_proxy() first.
    __device__ __forceinline__ void async_store(
        const Shared& shared, Coordinates<kRank> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        check_store(shared, at);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
            tma::store<kRank>(map, box_start(at, box), box_address(shared, box), policy);
        }
    }

    // Store the tile, called by all lanes of a warp, of which the lane with `elect` issues it.
    // Groups belong to the thread that issued: let the same thread commit and wait.
    __device__ __forceinline__ void async_store_elect(
        const Shared& shared,
        Coordinates<kRank> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_store(shared, at, policy);
    }

    // Reduce the tile into global memory, in the arithmetic of the map's type.
    template <ReduceOp kOp>
    __device__ __forceinline__ void async_reduce(
        const Shared& shared, Coordinates<kRank> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
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

    // The offset of an element of the tile in shared memory, in bytes from the start of the tile,
    // which is aligned; the host's tile_offset. Its position in the tile is given innermost first.
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

    // The coordinates of box `box` in the array. Boxes are numbered with the last side slowest and
    // the sides before it in row-major order.
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

// A tile of a plain one-dimensional array: no tensor map, any length that is a multiple of 16
// bytes. The last tile is shorter, so the bytes to expect depend on where the tile starts.
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

    // Nothing to prefetch; both kinds of tile have it, so that one kernel serves both.
    __device__ __forceinline__ void prefetch_descriptor() const {}

    // Bytes of the tile that starts here.
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
