// Decodes the 128 bytes of a tensor map, in the layout of tmaasync/tensormap/encoding.py.
#pragma once

#include <cstdint>
#include <cstring>

#include "reason.hpp"

namespace tmaasync_emulate {

// Thrown where the chip would end the kernel (illegal instruction, misaligned address), with the
// reason that the chip does not give.
struct Fault {
    Reason reason;
    uintptr_t site = 0;  // site in the kernel, if its thread is elsewhere now
};

// The numbers and names of cuda.h, as in tmaasync.DataType.
enum class ElementType : uint8_t {
    kUint8,
    kUint16,
    kUint32,
    kInt32,
    kUint64,
    kInt64,
    kFloat16,
    kFloat32,
    kFloat64,
    kBfloat16,
    kFloat32Ftz,
    kTfloat32,
    kTfloat32Ftz,
    kPacked4,      // two elements of 4 bits a byte
    kPacked4Gaps,  // the same, and in shared memory 8 bytes unused after every 16 elements
    kPacked6Gaps,  // elements of 6 bits, and in shared memory 4 bytes unused after every 16
};

inline const char* name(ElementType type) {
    static constexpr const char* kNames[] = {
        "UINT8",        "UINT16",       "UINT32",        "INT32",         "UINT64",      "INT64",
        "FLOAT16",      "FLOAT32",      "FLOAT64",       "BFLOAT16",      "FLOAT32_FTZ", "TFLOAT32",
        "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B",
    };
    return kNames[static_cast<int>(type)];
}

inline bool is_packed(ElementType type) {
    return type >= ElementType::kPacked4;
}

// Bytes in global memory of what a copy moves as one: an element, or of the packed types a byte or
// 16 elements.
inline uint32_t unit_bytes(ElementType type) {
    static constexpr uint8_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 1, 8, 12};
    return kBytes[static_cast<int>(type)];
}

// Bytes of it in shared memory, where the packed types may have gaps.
inline uint32_t shared_unit_bytes(ElementType type) {
    const bool has_gaps = type == ElementType::kPacked4Gaps || type == ElementType::kPacked6Gaps;
    return has_gaps ? 16 : unit_bytes(type);
}

// Elements of it.
inline uint32_t unit_elements(ElementType type) {
    if (!is_packed(type)) return 1;
    return type == ElementType::kPacked4 ? 2 : 16;
}

inline bool is_tf32(ElementType type) {
    return type == ElementType::kTfloat32 || type == ElementType::kTfloat32Ftz;
}

enum class Interleave : uint8_t { kNone, kB16, kB32 };
enum class Swizzle : uint8_t {
    kNone,
    kB32,
    kB64,
    kB128,
    kB128Atom32,
    kB128Atom32Flip8,
    kB128Atom64,
};

// Bytes of a swizzled row.
inline uint32_t span_of(Swizzle swizzle) {
    const int code = static_cast<int>(swizzle);
    return 16u << (code < 3 ? code : 3);
}

// The address bits from 7 up that a swizzle reads, and the lowest bit that it changes.
struct SwizzleBits {
    uint32_t mask;
    int target;
};

inline SwizzleBits bits_of(Swizzle swizzle) {
    static constexpr SwizzleBits kBits[] = {
        {0, 4}, {1, 4}, {3, 4}, {7, 4}, {3, 5}, {3, 5}, {1, 6},
    };
    return kBits[static_cast<int>(swizzle)];
}

// Bytes after which a swizzle repeats.
inline uint32_t period_of(Swizzle swizzle) {
    return 128 * (bits_of(swizzle).mask + 1);
}

// The kinds of maps. The last two move pixels along the width alone: im2col::w and im2col::w::128.
enum class MapKind : uint8_t { kTiled, kIm2col, kIm2colW, kIm2colW128 };

constexpr int kMaxRank = 5;
constexpr int kListedRows = 4;  // of a gather4 or a scatter4
constexpr int kMaxSpatial = 3;
constexpr uint32_t kMapBytes = 128;
constexpr uint32_t kMapAlignment = 64;
constexpr uint32_t kUnitBytes = 16;  // TMA moves, swizzles and clips in units of 16 bytes

// The fields of a map. Arrays over dimensions run innermost first, as coordinates do.
struct TensorMapView {
    uint64_t address;
    MapKind kind;
    int rank;
    ElementType type;
    // Counts along the innermost dimension are of units: elements, but for the packed types.
    uint32_t unit_bytes;         // in global memory
    uint32_t shared_unit_bytes;  // in shared memory
    uint32_t unit_elements;
    Interleave interleave;
    Swizzle swizzle;
    bool fills_nan;
    int64_t extents[kMaxRank];
    uint64_t strides_bytes[kMaxRank];  // the innermost is the element's size
    uint32_t element_strides[kMaxRank];

    // The bytes that one instruction moves. In an im2col map, elements are channels and rows are
    // pixels.
    uint32_t row_units;
    uint32_t row_bytes;
    uint32_t rows;
    uint32_t box_bytes;        // in shared memory, gaps within units included
    uint32_t credited_bytes;   // credited to the barrier: as many as are moved
    uint32_t row_pitch_bytes;  // distance between rows in shared memory
    uint32_t shared_bytes;  // distance from the first byte in shared memory to the end of the last

    // For tiled maps: elements that the box takes per dimension, ceil(side / element stride). The
    // innermost side is whole, because the chip ignores the innermost stride (measured).
    uint32_t moved[kMaxRank];
    bool lists_rows;  // the rows have a coordinate each, in gather4 and scatter4

    // For im2col maps, innermost spatial dimension first; along the width alone, the width's.
    uint32_t pixels;  // of a column, without halos
    int32_t lower_corner[kMaxSpatial];
    int32_t upper_corner[kMaxSpatial];
};

namespace detail {

template <typename... Facts>
[[noreturn]] void fault(FaultKind kind, const Facts&... facts) {
    throw Fault{{kind, facts...}};
}

// The 128 bytes as one little-endian number.
class MapBits {
public:
    explicit MapBits(const void* map) { std::memcpy(words_, map, kMapBytes); }

    // A field is at most 64 bits wide, and may cross a word.
    uint64_t unsigned_at(int bit, int width) const {
        const int word = bit / 64, shift = bit % 64;
        uint64_t value = words_[word] >> shift;
        if (shift + width > 64) value |= words_[word + 1] << (64 - shift);
        return width == 64 ? value : value & ((uint64_t{1} << width) - 1);
    }

    int32_t signed_at(int bit, int width) const {
        const auto reach = int32_t{1} << (width - 1);
        return (static_cast<int32_t>(unsigned_at(bit, width)) ^ reach) - reach;
    }

private:
    uint64_t words_[kMapBytes / 8];
};

[[noreturn]] inline void not_a_map(const Reason& why) {
    fault(FaultKind::kNoMap, why);
}

// The element types by their numbers in the PTX ISA, up to bfloat16.
inline ElementType type_of_code(uint64_t code) {
    using enum ElementType;
    static constexpr ElementType kOfCode[] = {
        kUint8,   kUint16,  kUint32,     kInt32,   kUint64,   kInt64,
        kFloat16, kFloat32, kFloat32Ftz, kFloat64, kBfloat16,
    };
    return kOfCode[code];
}

inline ElementType decoded_type(const MapBits& bits, bool has_wide_maps) {
    using enum ElementType;
    const uint64_t code = bits.unsigned_at(71, 4);
    const bool tf32 = bits.unsigned_at(80, 1);
    if (tf32 && code == 7) return kTfloat32;
    if (tf32 && code == 8) return kTfloat32Ftz;
    if (!tf32 && code >= 13 && has_wide_maps) return static_cast<ElementType>(code);
    if (tf32 || code > 10) not_a_map({FaultKind::kItsType, code});
    return type_of_code(code);
}

// Checks the bits that no map sets, and the derived word that holds the swizzle's period in bytes.
// Memory that holds no map, such as zeros, rarely passes. Measured on an H100: the chip does not
// read that word, which is 0 in a map that tensormap.replace makes of 128 zero bytes.
inline void check_constant_bits(const MapBits& bits, bool has_wide_maps) {
    const bool is_odd = bits.unsigned_at(65, 2) && (bits.unsigned_at(64, 2) != 3);
    const bool is_newer = bits.unsigned_at(65, 2) || bits.unsigned_at(83, 2);
    if (is_odd || (is_newer && !has_wide_maps)) not_a_map(FaultKind::kItsBits);
    if (bits.unsigned_at(67, 1) || bits.unsigned_at(85, 11) || bits.unsigned_at(431, 9) ||
        bits.unsigned_at(490, 22)) {
        not_a_map(FaultKind::kItsBits);
    }
    const uint64_t pattern = bits.unsigned_at(576, 32);
    const bool is_made_of_zeros = pattern == 0 && bits.unsigned_at(0, 64) != 0;
    if (!is_made_of_zeros && pattern != 16 && pattern != 256 && pattern != 512 && pattern != 1024) {
        not_a_map({FaultKind::kItsPattern, pattern});
    }
}

inline void decode_tensor(const MapBits& bits, TensorMapView& map) {
    map.strides_bytes[0] = map.unit_bytes;
    for (int dim = 0; dim < map.rank; ++dim) {
        map.extents[dim] = static_cast<int64_t>(bits.unsigned_at(256 + 32 * dim, 32)) + 1;
        map.element_strides[dim] = static_cast<uint32_t>(bits.unsigned_at(416 + 3 * dim, 3)) + 1;
    }
    map.extents[0] = (map.extents[0] + map.unit_elements - 1) / map.unit_elements;
    for (int dim = 1; dim < map.rank; ++dim) {
        const uint64_t low = bits.unsigned_at(96 + 32 * (dim - 1), 32);
        const uint64_t high = bits.unsigned_at(224 + 4 * (dim - 1), 4);
        map.strides_bytes[dim] = (low | high << 32) * kUnitBytes;
    }
}

inline void decode_box(const MapBits& bits, TensorMapView& map) {
    map.rows = 1;
    map.moved[0] = map.row_units;
    for (int dim = 1; dim < map.rank; ++dim) {
        const auto side = static_cast<uint32_t>(bits.unsigned_at(448 + 8 * (dim - 1), 8)) + 1;
        const uint32_t stride = map.element_strides[dim];
        map.moved[dim] = (side + stride - 1) / stride;
        map.rows *= map.moved[dim];
    }
}

inline void decode_column(const MapBits& bits, TensorMapView& map) {
    map.rows = map.pixels = static_cast<uint32_t>(bits.unsigned_at(480, 10)) + 1;
    const bool is_wide = map.kind != MapKind::kIm2col;
    const int width = map.rank == 3 || is_wide ? 16 : map.rank == 4 ? 8 : 5;
    for (int spatial = 0; spatial < (is_wide ? 1 : map.rank - 2); ++spatial) {
        map.lower_corner[spatial] = bits.signed_at(448 + width * spatial, width);
        map.upper_corner[spatial] = bits.signed_at(464 + width * spatial, width);
    }
}

// Measured: with a swizzle, the rows of a box lie a whole span apart, however narrow they are. The
// pitch of interleaved rows is not established; they are taken to be dense.
inline void lay_out_rows(TensorMapView& map) {
    const bool keeps_span = map.swizzle != Swizzle::kNone && map.interleave == Interleave::kNone;
    const uint32_t span = span_of(map.swizzle);
    map.box_bytes = map.rows * map.row_bytes;
    map.credited_bytes = map.rows * map.row_units * map.unit_bytes;
    map.row_pitch_bytes = keeps_span && map.row_bytes < span ? span : map.row_bytes;
    map.shared_bytes = (map.rows - 1) * map.row_pitch_bytes + map.row_bytes;
}

inline void check_granules(const TensorMapView& map) {
    const bool is_coarse = map.interleave == Interleave::kB32 || map.unit_elements == 16;
    const uint32_t granule = is_coarse ? 2 * kUnitBytes : kUnitBytes;
    if (map.address % granule) {
        fault(FaultKind::kMapAddress, hexadecimal(map.address), granule);
    }
    if (map.row_bytes % kUnitBytes) {
        const uint32_t whole = (map.row_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
        fault(FaultKind::kMapBox, map.row_bytes, whole);
    }
}

// im2col::w and im2col::w::128 take the two bits after im2col's.
inline MapKind decoded_kind(const MapBits& bits) {
    if (!bits.unsigned_at(64, 1)) return MapKind::kTiled;
    if (!bits.unsigned_at(65, 1)) return MapKind::kIm2col;
    return bits.unsigned_at(66, 1) ? MapKind::kIm2colW128 : MapKind::kIm2colW;
}

inline void decode_units(const MapBits& bits, TensorMapView& map, bool has_wide_maps) {
    map.type = decoded_type(bits, has_wide_maps);
    map.unit_bytes = unit_bytes(map.type);
    map.shared_unit_bytes = shared_unit_bytes(map.type);
    map.unit_elements = unit_elements(map.type);
    map.row_units = (static_cast<uint32_t>(bits.unsigned_at(440, 8)) + 1) / map.unit_elements;
    map.row_bytes = map.row_units * map.shared_unit_bytes;
}

}  // namespace detail

// True if only Blackwell of data centers has what the map uses. Its bits are the emulator's own:
// those that the chip reads are not published.
inline bool needs_sm_100(const TensorMapView& map) {
    const bool is_wide = map.kind == MapKind::kIm2colW || map.kind == MapKind::kIm2colW128;
    return is_wide || is_packed(map.type) || map.swizzle > Swizzle::kB128;
}

// Reads a map as the chip does when an instruction names it.
inline TensorMapView decode(const void* map128, bool has_wide_maps = false) {
    const auto place = reinterpret_cast<uintptr_t>(map128);
    if (place % kMapAlignment) {
        detail::fault(FaultKind::kMapPlace, hexadecimal(place));
    }
    const detail::MapBits bits(map128);
    TensorMapView map{};
    map.address = bits.unsigned_at(0, 64);
    map.kind = detail::decoded_kind(bits);
    map.rank = static_cast<int>(bits.unsigned_at(68, 3)) + 1;
    if (map.rank > kMaxRank || (map.kind != MapKind::kTiled && map.rank < 3)) {
        detail::not_a_map({FaultKind::kItsRank, map.rank});
    }
    if (bits.unsigned_at(75, 2) > 2) detail::not_a_map(FaultKind::kItsInterleave);
    detail::check_constant_bits(bits, has_wide_maps);
    detail::decode_units(bits, map, has_wide_maps);
    map.interleave = static_cast<Interleave>(bits.unsigned_at(75, 2));
    map.swizzle = static_cast<Swizzle>(bits.unsigned_at(77, 2) + bits.unsigned_at(83, 2));
    map.fills_nan = bits.unsigned_at(79, 1);
    detail::decode_tensor(bits, map);
    map.kind == MapKind::kTiled ? detail::decode_box(bits, map) : detail::decode_column(bits, map);
    detail::lay_out_rows(map);
    detail::check_granules(map);
    return map;
}

}  // namespace tmaasync_emulate
