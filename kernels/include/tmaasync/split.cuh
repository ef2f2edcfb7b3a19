#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/tile.cuh>

namespace tmaasync {

// Layouts that bring a tile of [rows][1][depth] from a [rows, heads, depth] array to shared memory
// with a single instruction, though a swizzled box is no wider than a chunk: the map splits the
// depth, and for kRowMajor the rows, into dimensions of their own.
template <typename T, int kRows, int kDepth, Swizzle kSwizzle, bool kRowMajor>
struct FoldedBox {
    static constexpr int kChunk = span_bytes(kSwizzle) / static_cast<int>(sizeof(T));
    static_assert(kDepth % kChunk == 0, "the depth is a multiple of the chunk");
    using Sides = Shape<1, kDepth / kChunk, kRows, kChunk>;

    // head, depth chunk, row, element
    __device__ __forceinline__ static Coordinates<4> folded(Coordinates<3> at) {
        check_multiple("at[0]", at.values[0], kChunk);
        return {0, at.values[2], at.values[0] / kChunk, at.values[1]};
    }
};

template <typename T, int kRows, int kDepth, Swizzle kSwizzle>
struct FoldedBox<T, kRows, kDepth, kSwizzle, true> {
    static constexpr int kChunk = span_bytes(kSwizzle) / static_cast<int>(sizeof(T));
    static_assert(kDepth % kChunk == 0, "the depth is a multiple of the chunk");
    static_assert(kRows % 8 == 0, "row-major atoms have eight rows");
    using Sides = Shape<1, kRows / 8, kDepth / kChunk, 8, kChunk>;

    // head, eight rows, depth chunk, row, element
    __device__ __forceinline__ static Coordinates<5> folded(Coordinates<3> at) {
        check_multiple("at[0]", at.values[0], kChunk);
        check_multiple("at[2]", at.values[2], 8);
        return {0, 0, at.values[0] / kChunk, at.values[2] / 8, at.values[1]};
    }
};

// A tile of `kRows` rows of one head whose whole depth is one box; the host's create_split_tma with
// fold_chunks writes the type. In shared memory it is [chunks][rows][chunk], byte for byte what the
// unfolded tile is; with kRowMajor [rows / 8][chunks][8][chunk].
//
// Coordinates count in the unfolded array, innermost first: {depth, head, row}. The depth is a
// multiple of the chunk, and with kRowMajor the row a multiple of 8.
template <typename T, int kRows, int kDepth, Swizzle kSwizzleMode, bool kRowMajor = false>
struct SplitLastDimTMATensorTile
    : TMATensorTile<
          T,
          typename FoldedBox<T, kRows, kDepth, kSwizzleMode, kRowMajor>::Sides,
          typename FoldedBox<T, kRows, kDepth, kSwizzleMode, kRowMajor>::Sides,
          kSwizzleMode> {
    using Fold = FoldedBox<T, kRows, kDepth, kSwizzleMode, kRowMajor>;
    using Folded = TMATensorTile<T, typename Fold::Sides, typename Fold::Sides, kSwizzleMode>;
    using Shared = typename Folded::Shared;
    static constexpr int kRank = 3;

    // Extent along a dimension of the unfolded array, outermost first: {rows, heads, depth}.
    __device__ static constexpr int side(int dim) { return Shape<kRows, 1, kDepth>::side(dim); }

    __device__ static constexpr u32 bytes_at(Coordinates<3>) { return Folded::kBytes; }

    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<3> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        Folded::async_copy(shared, barrier, Fold::folded(at), policy);
    }

    __device__ __forceinline__ void async_copy_elect(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<3> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_copy(shared, barrier, at, policy);
    }

    __device__ __forceinline__ void async_multicast_load(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<3> at,
        u16 cta_mask,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        Folded::async_multicast_load(shared, barrier, Fold::folded(at), cta_mask, policy);
    }

    __device__ __forceinline__ void async_multicast_load_elect(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<3> at,
        u16 cta_mask,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_multicast_load(shared, barrier, at, cta_mask, policy);
    }

    // The tile is one box: the CTA of part 0 loads it for all.
    template <int kParts>
    __device__ __forceinline__ void async_multicast_load_partitioned(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<3> at,
        u16 cta_mask,
        u32 part,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        Folded::template async_multicast_load_partitioned<kParts>(
            shared, barrier, Fold::folded(at), cta_mask, part, policy
        );
    }

    __device__ __forceinline__ void prefetch(
        Coordinates<3> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        Folded::prefetch(Fold::folded(at), policy);
    }

    __device__ __forceinline__ void async_store(
        const Shared& shared, Coordinates<3> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        Folded::async_store(shared, Fold::folded(at), policy);
    }

    __device__ __forceinline__ void async_store_elect(
        const Shared& shared,
        Coordinates<3> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_store(shared, at, policy);
    }

    template <ReduceOp kOp>
    __device__ __forceinline__ void async_reduce(
        const Shared& shared, Coordinates<3> at, CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        Folded::template async_reduce<kOp>(shared, Fold::folded(at), policy);
    }

    template <ReduceOp kOp>
    __device__ __forceinline__ void async_reduce_elect(
        const Shared& shared,
        Coordinates<3> at,
        bool elect,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if (elect) async_reduce<kOp>(shared, at, policy);
    }
};

}  // namespace tmaasync
