#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/tma_issue.cuh>

namespace tmaasync {

// A number of 32-bit or 64-bit cumulative lengths; the nearest of 32 bits.
template <typename Index>
__device__ __forceinline__ i32 cumulative_length(const Index* cu_seqlens, i32 index) {
    static_assert(Index(1) / 2 == 0, "cumulative lengths are integers");
    static_assert(sizeof(Index) == 4 || sizeof(Index) == 8, "of 32 or 64 bits");
    constexpr i32 kMost = 0x7fffffff;
    const Index value = cu_seqlens[index];
    if (value > Index(kMost)) return kMost;
    if constexpr (sizeof(Index) == 8 && Index(-1) < Index(0)) {
        if (value < -Index(kMost)) return -kMost;
    }
    return static_cast<i32>(value);
}

// Rows [start, start + length) of a packed array.
struct RaggedSequence {
    i32 start;
    i32 length;

    // Sequence `index` of a batch, from 32-bit or 64-bit cumulative lengths: 0 first, the total
    // last. Numbers beyond 32 bits count as the nearest of 32 bits.
    template <typename Index>
    __device__ __forceinline__ static RaggedSequence of(const Index* cu_seqlens, i32 index) {
        check(index >= 0, "index", index, "it must be at least", 0);
        const i32 start = cumulative_length(cu_seqlens, index);
        const i32 end = cumulative_length(cu_seqlens, index + 1);
        // Unsigned: the difference of any two numbers. A wrapped one fails is_within.
        return {start, static_cast<i32>(static_cast<u32>(end) - static_cast<u32>(start))};
    }

    __device__ __forceinline__ constexpr i32 end() const { return start + length; }

    // Whether it has at most max_length rows, all of them in an array of `rows` rows.
    __device__ __forceinline__ constexpr bool is_within(i32 max_length, i32 rows) const {
        return start >= 0 && length >= 0 && length <= max_length && start <= rows - length;
    }

    // Check in debug builds, and always on the emulator, that the length is at most max_length, and
    // all rows are in the array.
    __device__ __forceinline__ void check_within(i32 max_length, i32 rows) const {
        constexpr bool kChecks = kIsDebug || instrument::kIsEmulated;
        check_range<kChecks>("sequence.length", length, 0, max_length);
        check_range<kChecks>("sequence.start", start, 0, rows);
        check_range<kChecks>("sequence.start + length", i64{start} + length, 0, rows);
    }
};

// The number of a packed sequence's first tile of kTileRows rows. Whatever the lengths, the number
// of the next sequence is at least as many higher as this one has tiles: no prefix sum of tiles is
// needed, and at most one number per sequence has no tile.
template <int kTileRows, typename Index>
__device__ __forceinline__ i32 first_tile_number(const Index* cu_seqlens, i32 sequence) {
    return cumulative_length(cu_seqlens, sequence) / kTileRows + sequence;
}

// Sides with a leading 1 for the map's additional dimension.
template <typename Sides>
struct WithCursor;
template <int... kSides>
struct WithCursor<Shape<kSides...>> {
    using type = Shape<1, kSides...>;
};

// A tile of a map whose address lies outside its array.
//
// A load of a box without in-bounds elements fills zeros, but still accesses the map's address: a
// fault, if there is no memory (measured on an H200; a box with an in-bounds element, and every
// store, access only the elements that they move). A box without in-bounds elements is therefore
// loaded through `blank`: the same map at an address that always has memory. Only boxes beyond the
// ends are tested for that: one that ends at or before coordinate 0 must not be loaded.
template <typename TileOfMap>
struct OutlyingTile {
    using Tile = TileOfMap;
    using Shared = typename Tile::Shared;
    static constexpr int kRank = Tile::kRank;

    Tile tile;
    ptx::TensorMap blank;
    i32 ends[kRank];  // of the map's dimensions, innermost first

    __device__ __forceinline__ bool is_outside(const Coordinates<kRank>& start) const {
        bool outside = false;
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) {
            const i32 first = start.values[dim], before = Tile::box_side(kRank - 1 - dim);
            check(first > -before, "start of a box", first, "it must be above", -before);
            outside |= first >= ends[dim];
        }
        return outside;
    }

    __device__ __forceinline__ const ptx::TensorMap& map_for(
        const Coordinates<kRank>& start
    ) const {
        return is_outside(start) ? blank : tile.map;
    }

    __device__ __forceinline__ void prefetch_descriptor() const { tile.prefetch_descriptor(); }

    // kCtas is as in RaggedTensorMap::async_copy().
    template <int kCtas>
    __device__ __forceinline__ void async_copy(
        Shared& shared, SharedMemBarrier& barrier, Coordinates<kRank> at, CachePolicy policy
    ) const {
        Tile::check_load(shared, at);
        u32 counted = barrier.address();
        if constexpr (kCtas == 2) counted = ptx::even_cta_of_pair(counted);
#pragma unroll
        for (int box = 0; box < Tile::kBoxes; ++box) {
            const auto start = Tile::box_start(at, box);
            tma::load<kRank, kCtas>(
                Tile::box_address(shared, box), map_for(start), start, counted, policy
            );
        }
    }

    // kIsWithin: the box has an in-bounds element.
    template <bool kIsWithin>
    __device__ __forceinline__ void async_copy_box(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        int box,
        CachePolicy policy
    ) const {
        Tile::check_load(shared, at);
        check_index("box", box, Tile::kBoxes);
        tma::load<kRank>(
            Tile::box_address(shared, box), kIsWithin ? tile.map : map_for(at), at,
            barrier.address(), policy
        );
    }

    __device__ __forceinline__ void async_multicast_load(
        Shared& shared,
        SharedMemBarrier& barrier,
        Coordinates<kRank> at,
        u16 cta_mask,
        CachePolicy policy
    ) const {
        Tile::check_load(shared, at);
        check_cta_mask(cta_mask);
#pragma unroll
        for (int box = 0; box < Tile::kBoxes; ++box) {
            const auto start = Tile::box_start(at, box);
            tma::load_multicast<kRank>(
                Tile::box_address(shared, box), map_for(start), start, barrier.address(), cta_mask,
                policy
            );
        }
    }

    __device__ __forceinline__ void prefetch(Coordinates<kRank> at, CachePolicy policy) const {
        check_start<typename Tile::Element>(at);
#pragma unroll
        for (int box = 0; box < Tile::kBoxes; ++box) {
            const auto start = Tile::box_start(at, box);
            if (is_outside(start)) continue;
            tma::prefetch<kRank>(tile.map, start, policy);
        }
    }
};

// One map over sequences of different lengths that are packed back to back in an array: TMA itself
// stops at the end of each sequence. Beyond it, loads fill zeros and stores drop elements.
//
// The ragged dimension appears twice in the map, with the same stride: as a window of max_length
// rows in its original position, and outermost as a cursor. The cursor is the end of the sequence,
// and row r lies at max_length - length + r of the window, so that rows beyond the length are out
// of bounds. Their sum is row start + r of the array plus max_length rows. The map's address
// compensates: it lies max_length rows below the array, and is never accessed: see OutlyingTile.
//
// Tile and box list the array's dimensions, outermost first; coordinates list them innermost first,
// and count rows of the sequence along the ragged one. Starts below row 0 and lengths above
// max_length are illegal, because the rows before the sequence belong to another one.
template <
    typename T,
    typename TileShape,
    typename BoxShape = TileShape,
    Swizzle kSwizzleMode = Swizzle::kNone,
    int kRaggedDim = 0>
struct RaggedTensorMap {
    using Tile = TMATensorTile<
        T,
        typename WithCursor<TileShape>::type,
        typename WithCursor<BoxShape>::type,
        kSwizzleMode>;
    using Element = T;
    using Shared = typename Tile::Shared;
    static constexpr int kRank = TileShape::kRank;
    static constexpr int kBoxes = Tile::kBoxes;
    static constexpr int kBoxBytes = Tile::kBoxBytes;
    static constexpr int kBytes = Tile::kBytes;
    static constexpr int kAlignment = Tile::kAlignment;
    static constexpr Swizzle kSwizzle = kSwizzleMode;
    static constexpr bool kIsBulk = false;
    static_assert(0 <= kRaggedDim && kRaggedDim < kRank - 1, "contiguous rows cannot be ragged");
    static_assert(kRank <= 4, "the cursor takes one of the five dimensions");

    // Extent of the tile along side `dim` of the array, outermost first.
    __device__ static constexpr int side(int dim) { return TileShape::side(dim); }
    __device__ static constexpr int box_side(int dim) { return BoxShape::side(dim); }

    // Rows of a sequence that one tile spans.
    static constexpr int kRows = TileShape::side(kRaggedDim);

    OutlyingTile<Tile> outlying;
    i32 max_length;

    // The byte offset of an element of a tile in shared memory, for threads that read or write it:
    // `TMATensorTile::tile_offset`. The position lists the array's dimensions, innermost first;
    // rows count from the tile's first row.
    __device__ __forceinline__ static u32 tile_offset(Coordinates<kRank> position) {
        Coordinates<kRank + 1> placed;
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) placed.values[dim] = position.values[dim];
        placed.values[kRank] = 0;
        return Tile::tile_offset(placed);
    }

    __device__ __forceinline__ void prefetch_descriptor() const { outlying.prefetch_descriptor(); }

    // The map coordinates of the start of a sequence's tile.
    __device__ __forceinline__ Coordinates<kRank + 1> load_coordinates(
        RaggedSequence sequence, Coordinates<kRank> at
    ) const {
        constexpr int kRowDim = kRank - 1 - kRaggedDim;
        sequence.check_within(max_length, outlying.ends[kRank] - 1);
        check(at.values[kRowDim] >= 0, "row", at.values[kRowDim], "it must be at least", 0);
        Coordinates<kRank + 1> placed;
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) placed.values[dim] = at.values[dim];
        placed.values[kRowDim] += max_length - sequence.length;
        placed.values[kRank] = sequence.end();
        return placed;
    }

    // The coordinates of a store, which equal the coordinates of a load.
    __device__ __forceinline__ Coordinates<kRank + 1> store_coordinates(
        RaggedSequence sequence, Coordinates<kRank> at
    ) const {
        return load_coordinates(sequence, at);
    }

    // Load the tile at these coordinates of the sequence, with zeros beyond its end. The barrier
    // must expect kBytes. With kCtas = 2 (sm_100a, sm_103a) the barrier at this offset in the even
    // CTA of a pair counts the bytes of both.
    template <int kCtas = 1>
    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        RaggedSequence sequence,
        Coordinates<kRank> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.template async_copy<kCtas>(
            shared, barrier, load_coordinates(sequence, at), policy
        );
    }

    // Load box `box` of the tile, in shared-memory order, from these coordinates of the sequence.
    // They are arbitrary: the boxes of a tile may come from several sequences. kIsWithin promises
    // that the box has an in-bounds element, which saves the test. The barrier must expect
    // kBoxBytes.
    template <bool kIsWithin = false>
    __device__ __forceinline__ void async_copy_box(
        Shared& shared,
        SharedMemBarrier& barrier,
        RaggedSequence sequence,
        Coordinates<kRank> at,
        int box,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.template async_copy_box<kIsWithin>(
            shared, barrier, load_coordinates(sequence, at), box, policy
        );
    }

    // Load the tile to the same offset in every CTA in the mask. Each must expect kBytes.
    __device__ __forceinline__ void async_multicast_load(
        Shared& shared,
        SharedMemBarrier& barrier,
        RaggedSequence sequence,
        Coordinates<kRank> at,
        u16 cta_mask,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.async_multicast_load(
            shared, barrier, load_coordinates(sequence, at), cta_mask, policy
        );
    }

    // Prefetch the tile into L2.
    __device__ __forceinline__ void prefetch(
        RaggedSequence sequence,
        Coordinates<kRank> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.prefetch(load_coordinates(sequence, at), policy);
    }

    // Store the tile; rows beyond the end of the sequence are dropped. Follow with commit_group().
    // Ordinary writes to `shared` need fence_async_view_proxy() first.
    __device__ __forceinline__ void async_store(
        const Shared& shared,
        RaggedSequence sequence,
        Coordinates<kRank> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.tile.async_store(shared, store_coordinates(sequence, at), policy);
    }

    // Reduce the tile into global memory, up to the end of the sequence.
    template <ReduceOp kOp>
    __device__ __forceinline__ void async_reduce(
        const Shared& shared,
        RaggedSequence sequence,
        Coordinates<kRank> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.tile.template async_reduce<kOp>(shared, store_coordinates(sequence, at), policy);
    }
};

// Rows of one head of a packed array (rows, heads, last) or (rows, heads, groups, last). Cursor and
// head share one coordinate, because heads are contiguous; the rest is as in RaggedTensorMap.
//
// The sides are as in a map without heads: rows, (groups,) columns. With kIsChunked the columns
// are split into chunks, (chunks, rows, (groups,) chunk), and one instruction moves all of them.
template <typename T, typename TileShape, typename BoxShape, Swizzle kSwizzleMode, int kIsChunked>
struct RaggedTMA3DTile {
    using Tile = TMATensorTile<
        T,
        typename WithCursor<TileShape>::type,
        typename WithCursor<BoxShape>::type,
        kSwizzleMode>;
    using Element = T;
    using Shared = typename Tile::Shared;
    static constexpr int kRank = Tile::kRank;
    static constexpr int kBoxes = Tile::kBoxes;
    static constexpr int kBytes = Tile::kBytes;
    static constexpr int kAlignment = Tile::kAlignment;
    static constexpr Swizzle kSwizzle = kSwizzleMode;
    static constexpr int kRows = TileShape::side(kIsChunked);
    static_assert(!kIsChunked || kBoxes == 1, "one instruction moves all chunks");

    OutlyingTile<Tile> outlying;
    i32 max_length;
    i32 heads;

    // The byte offset of an element of a tile in shared memory, for threads that read or write it:
    // `TMATensorTile::tile_offset`. Rows and columns count from the tile's first.
    __device__ __forceinline__ static u32 tile_offset(i32 row, i32 column, i32 group = 0) {
        constexpr int kRowDim = kRank - 2 - kIsChunked;
        constexpr int kChunk = TileShape::side(TileShape::kRank - 1);
        Coordinates<kRank> position;
        position.values[kRank - 1] = 0;
        if constexpr (kRowDim == 2) position.values[1] = group;
        if constexpr (kIsChunked) position.values[kRank - 2] = column / kChunk;
        position.values[0] = kIsChunked ? column % kChunk : column;
        position.values[kRowDim] = row;
        return Tile::tile_offset(position);
    }

    __device__ __forceinline__ void prefetch_descriptor() const { outlying.prefetch_descriptor(); }

    // The map coordinates of the start of a sequence's tile.
    __device__ __forceinline__ Coordinates<kRank> load_coordinates(
        RaggedSequence sequence, i32 row, i32 head, i32 column = 0
    ) const {
        sequence.check_within(max_length, outlying.ends[kRank - 1] / heads - 1);
        check(row >= 0, "row", row, "it must be at least", 0);
        check_index("head", head, heads);
        constexpr int kChunk = TileShape::side(TileShape::kRank - 1);
        Coordinates<kRank> at;
        if constexpr (kIsChunked) {
            check_multiple("column", column, kChunk);
            at.values[kRank - 2] = column / kChunk;
        } else {
            at.values[0] = column;
        }
        at.values[kRank - 2 - kIsChunked] = max_length - sequence.length + row;
        at.values[kRank - 1] = sequence.end() * heads + head;
        return at;
    }

    // The coordinates of a store, which equal the coordinates of a load.
    __device__ __forceinline__ Coordinates<kRank> store_coordinates(
        RaggedSequence sequence, i32 row, i32 head, i32 column = 0
    ) const {
        return load_coordinates(sequence, row, head, column);
    }

    // Load the tile at this row and column, with zeros beyond the end of the sequence. The barrier
    // must expect kBytes.
    __device__ __forceinline__ void async_copy(
        Shared& shared,
        SharedMemBarrier& barrier,
        RaggedSequence sequence,
        i32 row,
        i32 head,
        i32 column = 0,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.template async_copy<1>(
            shared, barrier, load_coordinates(sequence, row, head, column), policy
        );
    }

    // Store the tile; rows beyond the end of the sequence are dropped. Follow with commit_group().
    // Ordinary writes to `shared` need fence_async_view_proxy() first.
    __device__ __forceinline__ void async_store(
        const Shared& shared,
        RaggedSequence sequence,
        i32 row,
        i32 head,
        i32 column = 0,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        outlying.tile.async_store(shared, store_coordinates(sequence, row, head, column), policy);
    }

    // Store one chunk of columns of the tile, for an epilogue that writes them one by one. By
    // default L2 evicts them first: nothing reads an output again before the kernel ends.
    __device__ __forceinline__ void async_store_chunk(
        const Shared& shared,
        i32 chunk,
        RaggedSequence sequence,
        i32 row,
        i32 head,
        CachePolicy policy = CachePolicy::kEvictFirst
    ) const {
        static_assert(!kIsChunked, "one instruction moves all chunks: use async_store");
        static_assert(
            kBoxes == Tile::boxes(kRank - 1), "a chunk is one box: use up to 256 rows and groups"
        );
        check_index("chunk", chunk, kBoxes);
        tma::store<kRank>(
            outlying.tile.map,
            store_coordinates(sequence, row, head, chunk * Tile::box_side(kRank - 1)),
            ptx::shared_address(shared.bytes) + chunk * Tile::kBoxBytes, policy
        );
    }
};

}  // namespace tmaasync
