#pragma once

namespace tmaasync {

// Which functions a visitor has; a chunk has kCount accumulators per thread. A visitor changes or
// reads accumulators before they are rounded. It is a struct with one or both of these functions,
// or a function (value, row, column) -> value for one element:
//
//   template <typename Accumulators, typename Tile>
//   __device__ void apply(Accumulators& accumulators, const Tile& tile) const;
//   template <typename Chunk, typename Tile>
//   __device__ void apply_chunk(Chunk& chunk, const Tile& tile) const;
//
// apply() gets all accumulators of the warpgroup, Register[row blocks][columns / 2]. apply_chunk()
// gets the Register[columns of a chunk / 2] of 64 rows, right before they are stored, so that it
// needs registers for only one chunk. `tile` is the tile of the schedule, with m and n moved to the
// first row and column of these accumulators. accumulator_row and accumulator_column return the row
// and column of a thread's i-th accumulator.
template <typename Visitor, typename Accumulators, typename Register, int kCount, typename Tile>
struct Visits {
private:
    using Chunk = Register[kCount];
    struct Yes {
        char bytes[2];
    };

    // Overloads that exist only if the visitor has the function; never called.
    template <typename V>
    __device__ static auto tiles(const V* v)
        -> decltype(v->apply(*(Accumulators*)nullptr, *(const Tile*)nullptr), Yes());
    __device__ static char tiles(...);
    template <typename V>
    __device__ static auto chunks(const V* v)
        -> decltype(v->apply_chunk(*(Chunk*)nullptr, *(const Tile*)nullptr), Yes());
    __device__ static char chunks(...);
    template <typename V>
    __device__ static auto elements(const V* v) -> decltype((*v)(Register(), 0, 0), Yes());
    __device__ static char elements(...);

    static constexpr const Visitor* kVisitor = nullptr;

public:
    static constexpr bool kTiles = sizeof(tiles(kVisitor)) == sizeof(Yes);
    static constexpr bool kChunks = sizeof(chunks(kVisitor)) == sizeof(Yes);
    static constexpr bool kElements = sizeof(elements(kVisitor)) == sizeof(Yes);
    static_assert(
        kTiles || kChunks || kElements,
        "a visitor has apply(accumulators, tile) const or apply_chunk(chunk, tile) const, or it is "
        "a function (value, row, column) -> value"
    );
};

}  // namespace tmaasync
