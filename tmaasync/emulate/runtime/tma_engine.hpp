// The effect of one TMA instruction. The runtime decides when it happens.
//
// "Measured" means on an H200 (benchmarks/probe_hardware.py, docs/hardware.md). Statements of the
// PTX ISA or of cuda.h were not measured.
//
// Three cases are neither measured nor documented, and are read in the plainest way: interleaved
// tiled maps (the innermost dimension is dense, the others go by their strides), element strides of
// stores (as for loads), and the clipping of reductions (as for stores).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "tensor_map.hpp"

namespace tmaasync_emulate {

// The operations, in the order of tmaasync::ptx::ReduceOp.
enum class ReduceOp : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

inline const char* name(ReduceOp op) {
    static constexpr const char* kNames[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
    return kNames[static_cast<int>(op)];
}

// An observer of the accesses has these members. Two more are optional: is_inside returns whether
// bytes belong to an array of the launch, and source receives every unit that is read from shared.
struct NoObserver {
    void shared(uint32_t /*offset*/, uint32_t /*bytes*/, bool /*is_write*/) {}
    void global(const void* /*pointer*/, uint64_t /*bytes*/, bool /*is_write*/) {}
};

namespace detail {

constexpr uint32_t kLineBytes = 128;        // a swizzle permutes units within a line
constexpr uint32_t kTensorAlignment = 128;  // alignment of shared addresses in tensor copies
constexpr uint32_t kMaxRowBytes = 256 * 8;  // 256 elements of 8 bytes
constexpr uint16_t kNanFill = 0x7ff7;       // per 16 bits, whatever the type (measured)

// --- shared memory ------------------------------------------------------------------------------

// A box in shared memory. The swizzle XORs address bits 4 to 6 with bits 7 to 9 under the mask.
struct SharedImage {
    uint8_t* base;
    uint32_t offset;
    uint32_t mask;

    SharedImage(const TensorMapView& map, const uint8_t* cta_shared_base, uint32_t shared_offset)
        : base(const_cast<uint8_t*>(cta_shared_base)),
          offset(shared_offset),
          mask((1u << static_cast<int>(map.swizzle)) - 1) {}

    uint32_t swizzled(uint32_t address) const { return address ^ ((address >> 7 & mask) << 4); }

    void write(uint32_t at, const uint8_t* row, uint32_t bytes) const {
        if (mask == 0) {
            std::memcpy(base + offset + at, row, bytes);
            return;
        }
        for (uint32_t unit = 0; unit < bytes; unit += kUnitBytes) {
            std::memcpy(base + swizzled(offset + at + unit), row + unit, kUnitBytes);
        }
    }

    void read(uint32_t at, uint8_t* row, uint32_t bytes) const {
        if (mask == 0) {
            std::memcpy(row, base + offset + at, bytes);
            return;
        }
        for (uint32_t unit = 0; unit < bytes; unit += kUnitBytes) {
            std::memcpy(row + unit, base + swizzled(offset + at + unit), kUnitBytes);
        }
    }

    // Reports the units of a row that is about to be read, and how many bytes of each belong to
    // elements: the last sector of a row may reach beyond them.
    template <class Observer>
    void report_source(Observer& observer, uint32_t at, uint32_t bytes) const {
        if constexpr (requires { observer.source(base, offset, bytes); }) {
            for (uint32_t unit = 0; unit < bytes; unit += kUnitBytes) {
                const uint32_t used = std::min(kUnitBytes, bytes - unit);
                observer.source(base, swizzled(offset + at + unit), used);
            }
        }
    }

    // Reports every byte of the box once. A swizzle permutes whole lines within themselves, so
    // dense rows are reported as one range, and the last line and rows with gaps unit by unit.
    template <class Observer>
    void report(Observer& observer, const TensorMapView& map, bool is_write) const {
        const bool is_dense = map.row_pitch_bytes == map.row_bytes;
        const uint32_t granule = mask == 0 ? kUnitBytes : kLineBytes;
        const uint32_t whole = is_dense ? map.box_bytes / granule * granule : 0;
        if (whole) observer.shared(offset, whole, is_write);
        if (whole == map.box_bytes) return;
        for (uint32_t row = 0; row < map.rows; ++row) {
            const uint32_t start = row * map.row_pitch_bytes;
            for (uint32_t unit = start; unit < start + map.row_bytes; unit += kUnitBytes) {
                if (unit < whole) continue;
                observer.shared(swizzled(offset + unit), kUnitBytes, is_write);
            }
        }
    }
};

// --- checks -------------------------------------------------------------------------------------

// The coordinates as text, innermost first: "(8, -4)".
inline Words listed(const int32_t* coordinates, int rank) {
    Words words = "(";
    for (int dim = 0; dim < rank; ++dim) {
        words << (dim ? ", " : "") + decimal(coordinates[dim]);
    }
    return words + ")";
}

inline void check_kind(const TensorMapView& map, bool is_im2col) {
    if (map.is_im2col == is_im2col) return;
    const char* const kinds[] = {"a tiled", "an im2col"};
    fault(
        kinds[is_im2col], " copy was given ", kinds[map.is_im2col],
        " map. Use the instruction of the map's kind"
    );
}

// Measured: another alignment is a misaligned-address fault.
inline void check_shared_alignment(uint32_t shared_offset, uint32_t granule) {
    if (shared_offset % granule == 0) return;
    fault(
        "the shared address is ", Hex{shared_offset}, "; it must be a multiple of ", granule,
        ". Align the buffer with alignas(", granule, ")"
    );
}

// Measured, for tiled and im2col maps without interleave: an illegal instruction otherwise.
inline void check_inner_coordinate(const TensorMapView& map, const int32_t* coordinates) {
    const int64_t bytes = int64_t{coordinates[0]} * map.element_bytes;
    if (bytes % kUnitBytes == 0) return;
    fault(
        "the innermost coordinate is ", coordinates[0], ", or ", bytes, " bytes of ",
        name(map.type), "; it must be a multiple of 16 bytes. Step by multiples of ",
        kUnitBytes / map.element_bytes, " elements"
    );
}

// Measured, for stores and reductions: a negative coordinate is an illegal instruction.
inline void check_not_negative(const TensorMapView& map, const int32_t* coordinates) {
    for (int dim = 0; dim < map.rank; ++dim) {
        if (coordinates[dim] >= 0) continue;
        fault(
            "a store or reduction starts at ", listed(coordinates, map.rank), ", coordinate ", dim,
            " below 0; it must start inside the tensor or beyond its end. Shift the map's address, "
            "or skip the elements before it"
        );
    }
}

template <class Observer>
void access_global(
    Observer& observer,
    const TensorMapView& map,
    const int32_t* coordinates,
    uint64_t address,
    uint64_t bytes,
    bool is_write
) {
    const auto* pointer = reinterpret_cast<const void*>(address);
    if constexpr (requires { observer.is_inside(pointer, bytes); }) {
        if (!observer.is_inside(pointer, bytes)) {
            fault(
                "a copy at ", listed(coordinates, map.rank), is_write ? " writes " : " reads ",
                bytes, " bytes at ", Hex{address},
                ", outside every array of the launch; the map starts at ", Hex{map.address},
                ". Check its shape and strides, and that the array lives on"
            );
        }
    }
    observer.global(pointer, bytes, is_write);
}

// --- rows ---------------------------------------------------------------------------------------

// The elements of a row that lie inside the tensor: [first, end).
struct InnerRange {
    uint32_t first;
    uint32_t end;

    InnerRange(const TensorMapView& map, int64_t start, int64_t extent) {
        const int64_t elements = map.row_elements;
        first = static_cast<uint32_t>(std::clamp<int64_t>(-start, 0, elements));
        end = static_cast<uint32_t>(std::clamp<int64_t>(extent - start, first, elements));
    }

    bool is_empty() const { return first == end; }
};

// Calls visit(row, offset, is_inside) for every row of the box, in the order of shared memory.
// `offset` is the global byte offset of the row's coordinates, without the innermost.
template <class Visit>
void visit_rows(const TensorMapView& map, const int32_t* coordinates, Visit visit) {
    uint32_t steps[kMaxRank] = {};
    for (uint32_t row = 0; row < map.rows; ++row) {
        uint64_t offset = 0;  // wraps where a row lies outside
        bool is_inside = true;
        for (int dim = 1; dim < map.rank; ++dim) {
            const int64_t place = coordinates[dim] + int64_t{steps[dim]} * map.element_strides[dim];
            is_inside &= 0 <= place && place < map.extents[dim];
            offset += static_cast<uint64_t>(place) * map.strides_bytes[dim];
        }
        visit(row, offset, is_inside);
        for (int dim = 1; dim < map.rank && ++steps[dim] == map.moved[dim]; ++dim) steps[dim] = 0;
    }
}

inline void fill_row(const TensorMapView& map, uint8_t* row) {
    if (!map.fills_nan) {
        std::memset(row, 0, map.row_bytes);
        return;
    }
    for (uint32_t at = 0; at < map.row_bytes; at += sizeof(kNanFill)) {
        std::memcpy(row + at, &kNanFill, sizeof(kNanFill));
    }
}

// Measured: tf32 keeps 10 bits of mantissa, to nearest even. Subnormals become 0, NaNs 0x7fffe000.
inline uint32_t rounded_to_tf32(uint32_t bits) {
    constexpr uint32_t kExponent = 0x7f800000, kDropped = 0x1fff;
    if ((bits & kExponent) == 0) return bits & 0x80000000;
    if ((bits & kExponent) == kExponent) return bits << 9 ? 0x7fffe000 : bits;
    return (bits + (kDropped >> 1) + (bits >> 13 & 1)) & ~kDropped;
}

inline void round_row_to_tf32(uint8_t* row, uint32_t bytes) {
    for (uint32_t at = 0; at < bytes; at += sizeof(uint32_t)) {
        uint32_t bits;
        std::memcpy(&bits, row + at, sizeof(bits));
        bits = rounded_to_tf32(bits);
        std::memcpy(row + at, &bits, sizeof(bits));
    }
}

// Measured: for a load with no element in bounds, the chip touches the map's address, and faults
// without memory there.
template <class Observer>
void check_address_of(Observer& observer, const TensorMapView& map, const int32_t* coordinates) {
    const auto* pointer = reinterpret_cast<const void*>(map.address);
    if constexpr (requires { observer.is_inside(pointer, uint64_t{1}); }) {
        if (observer.is_inside(pointer, 1)) return;
        fault(
            "a load at ", listed(coordinates, map.rank),
            " has no element in bounds, so the chip touches the map's address ", Hex{map.address},
            ", which lies in none of the launch's arrays. Load this box through a map at an "
            "address with memory, as RaggedTensorMap does, or skip it"
        );
    }
}

// Loads one row into shared memory: elements inside the tensor from global memory, and the fill
// elsewhere. Measured: the fill is not rounded to TF32.
template <class Observer>
void load_row(
    Observer& observer,
    const TensorMapView& map,
    const int32_t* coordinates,
    const SharedImage& image,
    uint32_t at,
    uint64_t address,  // address of the row's first element, inside the tensor or not
    InnerRange inner
) {
    const uint32_t bytes = (inner.end - inner.first) * map.element_bytes;
    const uint64_t start = address + uint64_t{inner.first} * map.element_bytes;
    const auto* source = reinterpret_cast<const uint8_t*>(start);
    if (bytes) access_global(observer, map, coordinates, start, bytes, false);
    if (bytes == map.row_bytes && !is_tf32(map.type)) {
        image.write(at, source, bytes);
        return;
    }
    alignas(kUnitBytes) uint8_t row[kMaxRowBytes];
    uint8_t* const inside = row + inner.first * map.element_bytes;
    fill_row(map, row);
    if (bytes) std::memcpy(inside, source, bytes);
    if (is_tf32(map.type)) round_row_to_tf32(inside, bytes);
    image.write(at, row, map.row_bytes);
}

}  // namespace detail

// --- loads --------------------------------------------------------------------------------------

// Loads a box from global to shared memory through a tiled map: row-major, then swizzled. Returns
// the bytes to credit: the whole box (measured, also out of bounds and with element strides).
template <class Observer = NoObserver>
uint32_t tiled_load(
    const TensorMapView& map,
    const int32_t* coordinates,  // innermost first
    uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_kind(map, false);
    detail::check_shared_alignment(shared_offset, detail::kTensorAlignment);
    detail::check_inner_coordinate(map, coordinates);
    const detail::SharedImage image(map, cta_shared_base, shared_offset);
    const detail::InnerRange inner(map, coordinates[0], map.extents[0]);
    const detail::InnerRange nothing(map, 0, 0);
    const uint64_t first = map.address + static_cast<uint64_t>(coordinates[0]) * map.element_bytes;
    bool is_outside = true;
    detail::visit_rows(map, coordinates, [&](uint32_t row, uint64_t offset, bool is_inside) {
        is_outside &= !is_inside || inner.is_empty();
        detail::load_row(
            observer, map, coordinates, image, row * map.row_pitch_bytes, first + offset,
            is_inside ? inner : nothing
        );
    });
    if (is_outside) detail::check_address_of(observer, map, coordinates);
    image.report(observer, map, true);
    return map.box_bytes;
}

// --- stores -------------------------------------------------------------------------------------

namespace detail {

// Calls move(at, address, bytes) for every row that a store or reduction touches. Measured for
// stores: elements beyond the tensor are clipped, along the innermost dimension after the 16-byte
// sector in which the tensor ends. Reductions are assumed to clip alike.
template <class Observer, class Move>
void for_stored_rows(
    Observer& observer,
    const TensorMapView& map,
    const int32_t* coordinates,
    const SharedImage& image,
    Move move
) {
    check_kind(map, false);
    check_shared_alignment(image.offset, kTensorAlignment);
    check_not_negative(map, coordinates);
    check_inner_coordinate(map, coordinates);
    const InnerRange inner(map, coordinates[0], map.extents[0]);
    const uint32_t inside_bytes = inner.end * map.element_bytes;
    const uint32_t bytes = (inside_bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
    const uint64_t first = map.address + static_cast<uint64_t>(coordinates[0]) * map.element_bytes;
    visit_rows(map, coordinates, [&](uint32_t row, uint64_t offset, bool is_inside) {
        if (!is_inside || inner.is_empty()) return;
        access_global(observer, map, coordinates, first + offset, bytes, true);
        image.report_source(observer, row * map.row_pitch_bytes, inside_bytes);
        move(row * map.row_pitch_bytes, reinterpret_cast<uint8_t*>(first + offset), bytes);
    });
    image.report(observer, map, false);
}

}  // namespace detail

// Stores a box from shared to global memory through a tiled map.
template <class Observer = NoObserver>
void tiled_store(
    const TensorMapView& map,
    const int32_t* coordinates,
    const uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    const detail::SharedImage image(map, cta_shared_base, shared_offset);
    detail::for_stored_rows(
        observer, map, coordinates, image,
        [&](uint32_t at, uint8_t* target, uint32_t bytes) { image.read(at, target, bytes); }
    );
}

// --- reductions ---------------------------------------------------------------------------------

namespace detail {

// PTX ISA: arithmetic returns this NaN for every NaN.
constexpr uint16_t kCanonicalNan16 = 0x7fff;
constexpr uint32_t kCanonicalNan32 = 0x7fffffff;

struct Float16 {
    uint16_t bits;
    static constexpr uint16_t kInfinity = 0x7c00;

    float wide() const {
        const auto sign = static_cast<uint32_t>(bits & 0x8000) << 16;
        const uint32_t magnitude = bits & 0x7fff;
        if (magnitude >= kInfinity)
            return std::bit_cast<float>(sign | (magnitude << 13 | 0x7f800000));
        // The exponents' biases differ by 112; the multiplication is exact, subnormals included.
        const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
    }

    static Float16 nearest(float value) {
        const auto raw = std::bit_cast<uint32_t>(value);
        const auto sign = static_cast<uint16_t>(raw >> 16 & 0x8000);
        const uint32_t magnitude = raw & 0x7fffffff;
        if (magnitude > 0x7f800000) return {kCanonicalNan16};
        return {static_cast<uint16_t>(sign | nearest_magnitude(magnitude))};
    }

private:
    static uint32_t nearest_magnitude(uint32_t magnitude) {
        constexpr uint32_t kOverflow = 0x477ff000;  // 65520, half way to 2**16
        constexpr uint32_t kNormal = 0x38800000;    // 2**-14
        if (magnitude >= kOverflow) return kInfinity;
        if (magnitude < kNormal) {  // the last bit of 0.5f is 2**-24, as a subnormal's is
            const float sum = std::bit_cast<float>(magnitude) + 0.5f;
            return std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
        }
        return (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    }
};

struct Bfloat16 {
    uint16_t bits;
    static constexpr uint16_t kInfinity = 0x7f80;

    float wide() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

    static Bfloat16 nearest(float value) {
        const auto raw = std::bit_cast<uint32_t>(value);
        if (value != value) return {kCanonicalNan16};
        return {static_cast<uint16_t>((raw + 0x7fff + (raw >> 16 & 1)) >> 16)};
    }
};

template <typename T>
constexpr bool kIsNarrowFloat = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// PTX ISA, add.f32 in bulk reductions on global memory: subnormals become zeros of their sign.
inline float flushed(float value) {
    const auto raw = std::bit_cast<uint32_t>(value);
    return raw & 0x7f800000 ? value : std::bit_cast<float>(raw & 0x80000000);
}

inline float sum(float old, float given) {
    const float total = flushed(flushed(old) + flushed(given));
    return total != total ? std::bit_cast<float>(kCanonicalNan32) : total;
}

inline double sum(double old, double given) {
    return old + given;
}

// Rounding the sum to 24 bits first changes nothing: 24 is more than twice 11 plus one.
template <typename T>
requires kIsNarrowFloat<T> T sum(T old, T given) {
    return T::nearest(old.wide() + given.wide());
}

// Integers wrap.
template <typename T>
requires std::is_integral_v<T> T sum(T old, T given) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(old) + static_cast<Unsigned>(given));
}

template <typename T>
bool is_less(T left, T right) {
    return left < right;
}

// PTX ISA: -0 is less than +0.
template <typename T>
requires kIsNarrowFloat<T> bool is_less(T left, T right) {
    const auto rank = [](T value) {
        return value.bits & 0x8000 ? 0x8000 - value.bits - 1 : static_cast<int>(value.bits);
    };
    return rank(left) < rank(right);
}

// PTX ISA: a number wins over NaN, and two NaNs give the canonical one.
template <typename T>
T extreme(T old, T given, bool takes_given) {
    if constexpr (kIsNarrowFloat<T>) {
        const bool old_is_nan = (old.bits & 0x7fff) > T::kInfinity;
        const bool given_is_nan = (given.bits & 0x7fff) > T::kInfinity;
        if (old_is_nan && given_is_nan) return {kCanonicalNan16};
        if (old_is_nan || given_is_nan) return old_is_nan ? given : old;
    }
    return takes_given ? given : old;
}

struct Add {
    static constexpr auto kOp = ReduceOp::kAdd;
    template <typename T>
    static T of(T old, T given) {
        return sum(old, given);
    }
};

struct Min {
    static constexpr auto kOp = ReduceOp::kMin;
    template <typename T>
    static T of(T old, T given) {
        return extreme(old, given, is_less(given, old));
    }
};

struct Max {
    static constexpr auto kOp = ReduceOp::kMax;
    template <typename T>
    static T of(T old, T given) {
        return extreme(old, given, is_less(old, given));
    }
};

struct Inc {
    static constexpr auto kOp = ReduceOp::kInc;
    static uint32_t of(uint32_t old, uint32_t given) { return old >= given ? 0 : old + 1; }
};

struct Dec {
    static constexpr auto kOp = ReduceOp::kDec;
    static uint32_t of(uint32_t old, uint32_t given) {
        return old == 0 || old > given ? given : old - 1;
    }
};

struct And {
    static constexpr auto kOp = ReduceOp::kAnd;
    template <typename T>
    static T of(T old, T given) {
        return old & given;
    }
};

struct Or {
    static constexpr auto kOp = ReduceOp::kOr;
    template <typename T>
    static T of(T old, T given) {
        return old | given;
    }
};

struct Xor {
    static constexpr auto kOp = ReduceOp::kXor;
    template <typename T>
    static T of(T old, T given) {
        return old ^ given;
    }
};

template <size_t kBytes>
using Word =
    std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>;

// PTX ISA: each element is reduced on its own, as by a relaxed atomic of GPU scope. Clusters that
// run on other cores may reduce into the same element.
template <typename T, typename Op>
void reduce_row(uint8_t* target, const uint8_t* source, uint32_t bytes) {
    using Bits = Word<sizeof(T)>;
    for (uint32_t at = 0; at < bytes; at += sizeof(T)) {
        auto* const place = reinterpret_cast<Bits*>(target + at);
        T given;
        std::memcpy(&given, source + at, sizeof(T));
        Bits old = __atomic_load_n(place, __ATOMIC_RELAXED);
        Bits reduced;
        do {
            reduced = std::bit_cast<Bits>(Op::of(std::bit_cast<T>(old), given));
        } while (!__atomic_compare_exchange_n(
            place, &old, reduced, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED
        ));
    }
}

using RowReduction = void (*)(uint8_t* target, const uint8_t* source, uint32_t bytes);

template <typename T, typename... Ops>
RowReduction one_of(ReduceOp op) {
    RowReduction found = nullptr;
    ((found = Ops::kOp == op ? &reduce_row<T, Ops> : found), ...);
    return found;
}

// Measured: these reductions exist; every other combination is an illegal instruction.
inline RowReduction reduction(ReduceOp op, ElementType type) {
    using enum ElementType;
    switch (type) {
        case kUint32:
            return one_of<uint32_t, Add, Min, Max, Inc, Dec, And, Or, Xor>(op);
        case kInt32:
            return one_of<int32_t, Add, Min, Max, And, Or, Xor>(op);
        case kUint64:
            return one_of<uint64_t, Add, Min, Max, And, Or, Xor>(op);
        case kInt64:
            return one_of<int64_t, Min, Max>(op);
        case kFloat16:
            return one_of<Float16, Add, Min, Max>(op);
        case kBfloat16:
            return one_of<Bfloat16, Add, Min, Max>(op);
        case kFloat32:
        case kFloat32Ftz:
        case kTfloat32:
        case kTfloat32Ftz:
            return one_of<float, Add>(op);
        case kFloat64:
            return one_of<double, Add>(op);
        case kUint8:
        case kUint16:
            break;
    }
    return nullptr;
}

}  // namespace detail

// Reduces a box of shared memory into global memory, in the arithmetic of the map's type.
template <class Observer = NoObserver>
void tiled_reduce(
    ReduceOp op,
    const TensorMapView& map,
    const int32_t* coordinates,
    const uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    const detail::RowReduction reduce_row = detail::reduction(op, map.type);
    if (!reduce_row) {
        detail::fault(
            "the chip has no reduction ", name(op), " for ", name(map.type),
            ". Reduce in the kernel and store, or use another type"
        );
    }
    const detail::SharedImage image(map, cta_shared_base, shared_offset);
    detail::for_stored_rows(
        observer, map, coordinates, image, [&](uint32_t at, uint8_t* target, uint32_t bytes) {
            alignas(kUnitBytes) uint8_t row[detail::kMaxRowBytes];
            image.read(at, row, bytes);
            reduce_row(target, row, bytes);
        }
    );
}

// --- im2col -------------------------------------------------------------------------------------

namespace detail {

// PTX ISA: an offset has 16, 8 or 5 bits at rank 3, 4 or 5.
inline void check_offsets(const TensorMapView& map, const uint16_t* offsets) {
    const int bits = map.rank == 3 ? 16 : map.rank == 4 ? 8 : 5;
    for (int spatial = 0; spatial < map.rank - 2; ++spatial) {
        if (offsets[spatial] >> bits == 0) continue;
        fault(
            "im2col offset ", spatial, " is ", offsets[spatial], "; at rank ", map.rank,
            " it must be below ", 1 << bits, ". Use a smaller filter or dilation"
        );
    }
}

// Calls visit(pixel, offset, is_inside) for every pixel of the column.
//
// PTX ISA, "im2col mode": the pixels traverse the bounding box from the coordinates on. Per spatial
// dimension, the box reaches from `lower_corner` to `extent - 1 + upper_corner`. The traversal goes
// row by row, after the last row on to the next slice (at rank 5), and after the last slice on to
// the next image. A step is the element stride; each row starts at the lower corner again. The
// offsets move every pixel afterwards and move no bounds, so that the traversal for the filter's
// first tap serves all taps. A start outside the box is not defined; here the traversal goes on
// from there.
template <class Visit>
void visit_pixels(
    const TensorMapView& map, const int32_t* coordinates, const uint16_t* offsets, Visit visit
) {
    const int batch = map.rank - 1;
    int64_t place[kMaxRank], end[kMaxRank];
    for (int dim = 1; dim <= batch; ++dim) {
        place[dim] = coordinates[dim];
        end[dim] = map.extents[dim] + (dim < batch ? map.upper_corner[dim - 1] : 0);
    }
    for (uint32_t pixel = 0; pixel < map.rows; ++pixel) {
        uint64_t offset = 0;
        bool is_inside = true;
        for (int dim = 1; dim <= batch; ++dim) {
            const int64_t moved = place[dim] + (dim < batch ? offsets[dim - 1] : 0);
            is_inside &= 0 <= moved && moved < map.extents[dim];
            offset += static_cast<uint64_t>(moved) * map.strides_bytes[dim];
        }
        visit(pixel, offset, is_inside);
        for (int dim = 1; dim <= batch; ++dim) {
            place[dim] += map.element_strides[dim];
            if (dim == batch || place[dim] < end[dim]) break;
            place[dim] = map.lower_corner[dim - 1];
        }
    }
}

}  // namespace detail

// Loads a column from global to shared memory through an im2col map of rank 3 to 5:
// `channels_per_pixel` channels of `pixels_per_column` pixels, pixel by pixel, then swizzled.
// `offsets` has one number per spatial dimension, innermost first. Returns the bytes to credit: all
// of them (measured).
template <class Observer = NoObserver>
uint32_t im2col_load(
    const TensorMapView& map,
    const int32_t* coordinates,
    const uint16_t* offsets,
    uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_kind(map, true);
    if (map.interleave != Interleave::kNone) {
        detail::fault(
            "an im2col map is interleaved; which bytes the chip moves then is not established. "
            "Use Interleave.NONE"
        );
    }
    detail::check_shared_alignment(shared_offset, detail::kTensorAlignment);
    detail::check_inner_coordinate(map, coordinates);
    detail::check_offsets(map, offsets);
    const detail::SharedImage image(map, cta_shared_base, shared_offset);
    const detail::InnerRange inner(map, coordinates[0], map.extents[0]);
    const detail::InnerRange nothing(map, 0, 0);
    const uint64_t first = map.address + static_cast<uint64_t>(coordinates[0]) * map.element_bytes;
    detail::visit_pixels(
        map, coordinates, offsets, [&](uint32_t pixel, uint64_t offset, bool is_inside) {
            detail::load_row(
                observer, map, coordinates, image, pixel * map.row_pitch_bytes, first + offset,
                is_inside ? inner : nothing
            );
        }
    );
    image.report(observer, map, true);
    return map.box_bytes;
}

// --- copies without a map -----------------------------------------------------------------------

namespace detail {

// Measured: another alignment is a misaligned-address fault.
inline void check_bulk_addresses(const void* global, uint32_t shared_offset) {
    const auto address = reinterpret_cast<uintptr_t>(global);
    check_shared_alignment(shared_offset, kUnitBytes);
    if (address % kUnitBytes == 0) return;
    fault(
        "a bulk copy's global address is ", Hex{address},
        "; it must be a multiple of 16. Start the copy at one"
    );
}

template <class Observer>
void access_bulk(Observer& observer, const void* global, uint32_t bytes, bool is_write) {
    if constexpr (requires { observer.is_inside(global, uint64_t{bytes}); }) {
        if (!observer.is_inside(global, uint64_t{bytes})) {
            fault(
                "a bulk copy", is_write ? " writes " : " reads ", bytes, " bytes at ",
                Hex{reinterpret_cast<uintptr_t>(global)},
                ", outside every array of the launch. Check its address and size"
            );
        }
    }
    observer.global(global, bytes, is_write);
}

// Measured: a load drops the bytes beyond a multiple of 16. Copies between shared memories and
// reductions were not measured, so they are not assumed to drop any.
inline void check_bulk_size(const char* what, uint32_t bytes) {
    if (bytes % kUnitBytes == 0) return;
    fault(
        what, " moves ", bytes,
        " bytes; it must be a multiple of 16. Round the size, and let the "
        "buffers be that long"
    );
}

// Reports the units of shared memory that are about to be read.
template <class Observer>
void report_sources(Observer& observer, const uint8_t* base, uint32_t offset, uint32_t bytes) {
    if constexpr (requires { observer.source(base, offset, bytes); }) {
        for (uint32_t unit = 0; unit + kUnitBytes <= bytes; unit += kUnitBytes) {
            observer.source(base, offset + unit, kUnitBytes);
        }
    }
}

// Measured: bytes beyond a multiple of 16 are neither moved nor credited.
inline uint32_t bulk_bytes(uint32_t bytes) {
    return bytes / kUnitBytes * kUnitBytes;
}

}  // namespace detail

// Copies from global to shared memory. Returns the bytes moved, which are credited to the barrier.
template <class Observer = NoObserver>
uint32_t bulk_load(
    const void* global,
    uint32_t bytes,
    uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_bulk_addresses(global, shared_offset);
    const uint32_t moved = detail::bulk_bytes(bytes);
    if (moved == 0) return 0;
    detail::access_bulk(observer, global, moved, false);
    std::memcpy(cta_shared_base + shared_offset, global, moved);
    observer.shared(shared_offset, moved, true);
    return moved;
}

// Copies from shared to global memory. Returns the bytes moved.
template <class Observer = NoObserver>
uint32_t bulk_store(
    void* global,
    uint32_t bytes,
    const uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_bulk_addresses(global, shared_offset);
    const uint32_t moved = detail::bulk_bytes(bytes);
    if (moved == 0) return 0;
    detail::access_bulk(observer, global, moved, true);
    detail::report_sources(observer, cta_shared_base, shared_offset, moved);
    std::memcpy(global, cta_shared_base + shared_offset, moved);
    observer.shared(shared_offset, moved, false);
    return moved;
}

// The reduction of an instruction without a map. For bitwise operations only the size counts.
inline detail::RowReduction bulk_reduction(ReduceOp op, ElementType type) {
    const bool takes_bits = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
    const bool is_long = takes_bits && type == ElementType::kInt64;
    return detail::reduction(op, is_long ? ElementType::kUint64 : type);
}

// Reduces shared memory into global memory.
template <class Observer = NoObserver>
void bulk_reduce(
    ReduceOp op,
    ElementType type,
    void* global,
    uint32_t bytes,
    const uint8_t* cta_shared_base,
    uint32_t shared_offset,
    Observer&& observer = Observer{}
) {
    detail::check_bulk_addresses(global, shared_offset);
    detail::check_bulk_size("a bulk reduction", bytes);
    detail::access_bulk(observer, global, bytes, true);
    detail::report_sources(observer, cta_shared_base, shared_offset, bytes);
    bulk_reduction(op, type)(static_cast<uint8_t*>(global), cta_shared_base + shared_offset, bytes);
    observer.shared(shared_offset, bytes, false);
}

// Prefetches from global memory to L2. The memory must exist.
template <class Observer = NoObserver>
void bulk_prefetch(const void* global, uint32_t bytes, Observer&& observer = Observer{}) {
    detail::check_bulk_addresses(global, 0);
    detail::check_bulk_size("a bulk prefetch", bytes);
    detail::access_bulk(observer, global, bytes, false);
}

// Checks a copy from one CTA's shared memory to another's.
inline void check_push(uint32_t source, uint32_t target, uint32_t bytes) {
    detail::check_shared_alignment(source, kUnitBytes);
    detail::check_shared_alignment(target, kUnitBytes);
    detail::check_bulk_size("a copy between shared memories", bytes);
}

}  // namespace tmaasync_emulate
