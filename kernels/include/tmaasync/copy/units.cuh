#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/copy/strided.cuh>
#include <tmaasync/same_type.cuh>

// A tile in units: the few elements along its last side that a thread moves at once.
namespace tmaasync {

// One unit on both sides.
struct TileUnit {
    i64 global_bytes;  // from the first element of the array
    u32 shared_bytes;  // from the start of the tile
    int inside;        // how many of its elements the array has; -1 beyond the tile's last unit
};

// The units of a tile: kCount elements each, numbered in the order of the array.
template <typename Tile, int kCount, typename Global>
struct TileUnits {
    static constexpr int kRank = Tile::kRank;
    static constexpr u32 kPerRow = Tile::side(kRank - 1) / kCount;
    static constexpr u32 kUnits = Tile::kElements / kCount;
    static_assert(Tile::side(kRank - 1) % kCount == 0, "units make up the rows of a tile");

    // The coordinates in the tile at which a unit starts.
    __device__ __forceinline__ static Coordinates<kRank> start_of(u32 unit) {
        Coordinates<kRank> start;
        start.values[0] = static_cast<i32>(unit % kPerRow) * kCount;
        unit /= kPerRow;
#pragma unroll
        for (int dim = 1; dim < kRank; ++dim) {
            const u32 side = Tile::side(kRank - 1 - dim);
            start.values[dim] = static_cast<i32>(unit % side);
            unit /= side;
        }
        return start;
    }

    // The unit of that number, of the tile that starts at these coordinates.
    __device__ __forceinline__ static TileUnit at(
        const StridedTensor<Global, kRank>& array, Coordinates<kRank> start, u32 unit
    ) {
        if (unit >= kUnits) return {0, 0, -1};
        Coordinates<kRank> position = start_of(unit);
        const u32 shared_bytes = Tile::tile_offset(position);
#pragma unroll
        for (int dim = 0; dim < kRank; ++dim) position.values[dim] += start.values[dim];
        if (!array.contains(position)) return {0, shared_bytes, 0};
        // No unit begins before the array and ends within it: the host's plan_copy excludes it.
        const int inside = min(kCount, array.extents[0] - position.values[0]);
        return {array.offset_bytes(position), shared_bytes, inside};
    }
};

// --- the words that move a unit ------------------------------------------------------------------

template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
    using Type = unsigned char;
};
template <>
struct WordOf<2> {
    using Type = u16;
};
template <>
struct WordOf<4> {
    using Type = u32;
};
template <>
struct WordOf<8> {
    using Type = u64;
};
template <>
struct WordOf<16> {
    using Type = uint4;
};
template <int kBytes>
using Word = typename WordOf<kBytes>::Type;

// A word of global memory, in accesses of kAccessBytes where its address allows no wider ones.
template <int kBytes, int kAccessBytes>
__device__ __forceinline__ Word<kBytes> read_word(const unsigned char* global) {
    check_address("global", reinterpret_cast<u64>(global), min(kBytes, kAccessBytes));
    if constexpr (kAccessBytes >= kBytes) {
        return *reinterpret_cast<const Word<kBytes>*>(global);
    } else {
        Word<kBytes> word = 0;
#pragma unroll
        for (int part = 0; part < kBytes; part += kAccessBytes) {
            const auto bits = *reinterpret_cast<const Word<kAccessBytes>*>(global + part);
            word |= static_cast<Word<kBytes>>(bits) << 8 * part;
        }
        return word;
    }
}

template <int kBytes, int kAccessBytes>
__device__ __forceinline__ void write_word(unsigned char* global, Word<kBytes> word) {
    check_address("global", reinterpret_cast<u64>(global), min(kBytes, kAccessBytes));
    if constexpr (kAccessBytes >= kBytes) {
        *reinterpret_cast<Word<kBytes>*>(global) = word;
    } else {
#pragma unroll
        for (int part = 0; part < kBytes; part += kAccessBytes) {
            *reinterpret_cast<Word<kAccessBytes>*>(global + part) =
                static_cast<Word<kAccessBytes>>(word >> 8 * part);
        }
    }
}

// Elements in a row, on a multiple of their bytes.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) Pack {
    T values[kCount];
};

template <typename To, typename From>
__device__ __forceinline__ To bits_as(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// Convert as a cast does; the small floats are classes, and float32 holds each of their values.
template <typename To, typename From>
__device__ __forceinline__ To converted(From value) {
    if constexpr (__is_class(To) || __is_class(From)) {
        return static_cast<To>(static_cast<float>(value));
    } else {
        return static_cast<To>(value);
    }
}

template <typename To, typename From, int kCount>
__device__ __forceinline__ Pack<To, kCount> converted(const Pack<From, kCount>& from) {
    Pack<To, kCount> to;
#pragma unroll
    for (int i = 0; i < kCount; ++i) to.values[i] = converted<To>(from.values[i]);
    return to;
}

// Moves of units between global and shared memory, bit by bit or converted.
template <typename Element, typename Global, int kCount, int kAccessBytes>
struct UnitMover {
    static constexpr bool kConverts = !kSameType<Element, Global>;
    static constexpr int kGlobalBytes = kCount * sizeof(Global);
    static constexpr int kSharedBytes = kCount * sizeof(Element);
    using Value = Word<kGlobalBytes>;

    __device__ __forceinline__ static Value read(const unsigned char* global) {
        return read_word<kGlobalBytes, kAccessBytes>(global);
    }

    __device__ __forceinline__ static void write(unsigned char* global, Value value) {
        write_word<kGlobalBytes, kAccessBytes>(global, value);
    }

    __device__ __forceinline__ static void put(unsigned char* shared, Value value) {
        auto& target = *reinterpret_cast<Word<kSharedBytes>*>(shared);
        if constexpr (kConverts) {
            const auto given = bits_as<Pack<Global, kCount>>(value);
            target = bits_as<Word<kSharedBytes>>(converted<Element>(given));
        } else {
            target = value;
        }
    }

    __device__ __forceinline__ static Value get(const unsigned char* shared) {
        const auto word = *reinterpret_cast<const Word<kSharedBytes>*>(shared);
        if constexpr (kConverts) {
            return bits_as<Value>(converted<Global>(bits_as<Pack<Element, kCount>>(word)));
        } else {
            return word;
        }
    }
};

}  // namespace tmaasync
