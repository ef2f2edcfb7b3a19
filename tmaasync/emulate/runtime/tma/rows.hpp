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
#include <cstdint>
#include <cstring>

#include "tma/tensor_map.hpp"

namespace tmaasync_emulate {

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

// A box in shared memory. The swizzle XORs address bits from `target` up with the bits from 7 up
// under the mask.
struct SharedImage {
    uint8_t* base;
    uint32_t offset;
    uint32_t mask;
    int target;
    bool swaps_halves;  // the halves of the units of every other line are exchanged

    SharedImage(const TensorMapView& map, const uint8_t* cta_shared_base, uint32_t shared_offset)
        : base(const_cast<uint8_t*>(cta_shared_base)),
          offset(shared_offset),
          mask(bits_of(map.swizzle).mask),
          target(bits_of(map.swizzle).target),
          swaps_halves(map.swizzle == Swizzle::kB128Atom32Flip8) {}

    uint32_t swizzled(uint32_t address) const {
        return address ^ ((address >> 7 & mask) << target);
    }

    // Copies a unit that lies at an address before the swizzle, into shared memory or out of it.
    void copy_unit(uint8_t* to, const uint8_t* from, uint32_t address) const {
        const uint32_t half =
            swaps_halves ? address >> 4 & 8 : 0;  // address bit 3 is XORed with bit 7
        if (half == 0) {
            std::memcpy(to, from, kUnitBytes);
            return;
        }
        std::memcpy(to, from + half, half);
        std::memcpy(to + half, from, half);
    }

    void write(uint32_t at, const uint8_t* row, uint32_t bytes) const {
        if (mask == 0) {
            std::memcpy(base + offset + at, row, bytes);
            return;
        }
        for (uint32_t unit = 0; unit < bytes; unit += kUnitBytes) {
            copy_unit(base + swizzled(offset + at + unit), row + unit, offset + at + unit);
        }
    }

    void read(uint32_t at, uint8_t* row, uint32_t bytes) const {
        if (mask == 0) {
            std::memcpy(row, base + offset + at, bytes);
            return;
        }
        for (uint32_t unit = 0; unit < bytes; unit += kUnitBytes) {
            copy_unit(row + unit, base + swizzled(offset + at + unit), offset + at + unit);
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

// The innermost coordinate in units, once it was checked.
inline int64_t first_unit(const TensorMapView& map, const int32_t* coordinates) {
    return int64_t{coordinates[0]} / map.unit_elements;
}

// Address of the units at the innermost coordinate, in the first row.
inline uint64_t first_address(const TensorMapView& map, const int32_t* coordinates) {
    return map.address + static_cast<uint64_t>(first_unit(map, coordinates)) * map.unit_bytes;
}

// The number of coordinates that an instruction gives: a column and its rows, or one a dimension.
inline int coordinates_of(const TensorMapView& map) {
    return map.lists_rows ? 1 + kListedRows : map.rank;
}

// The coordinates as a list of facts, innermost first.
inline Reason listed(FaultKind kind, const TensorMapView& map, const int32_t* coordinates) {
    const int count = coordinates_of(map);
    Reason reason(kind, list_of(static_cast<std::size_t>(count)));
    for (int dim = 0; dim < count; ++dim) reason.add(coordinates[dim]);
    return reason;
}

inline FaultKind verb_of(bool is_write) {
    return is_write ? FaultKind::kWrites : FaultKind::kReads;
}

inline void check_kind(const TensorMapView& map, MapKind wanted) {
    if (map.kind == wanted) return;
    constexpr FaultKind kNames[] = {
        FaultKind::kTiled, FaultKind::kIm2col, FaultKind::kIm2colW, FaultKind::kIm2colW128
    };
    fault(
        FaultKind::kMapKind, kNames[static_cast<int>(wanted)], kNames[static_cast<int>(map.kind)]
    );
}

// Measured: another alignment is a misaligned-address fault.
inline void check_shared_alignment(uint32_t shared_offset, uint32_t granule) {
    if (shared_offset % granule == 0) return;
    fault(FaultKind::kSharedAlignment, hexadecimal(shared_offset), granule, granule);
}

// Measured, for tiled and im2col maps without interleave: an illegal instruction otherwise.
inline void check_inner_coordinate(const TensorMapView& map, const int32_t* coordinates) {
    const bool has_gaps = map.unit_elements == 16;
    const uint32_t step = has_gaps ? 128 : kUnitBytes * map.unit_elements / map.unit_bytes;
    if (coordinates[0] % static_cast<int32_t>(step) == 0) return;
    const int64_t bytes = int64_t{coordinates[0]} * map.unit_bytes / map.unit_elements;
    fault(FaultKind::kInnerCoordinate, coordinates[0], bytes, name(map.type), step);
}

// Measured, for stores and reductions: a negative coordinate is an illegal instruction.
inline void check_not_negative(const TensorMapView& map, const int32_t* coordinates) {
    for (int dim = 0; dim < coordinates_of(map); ++dim) {
        if (coordinates[dim] >= 0) continue;
        Reason reason = listed(FaultKind::kNegativeCoordinate, map, coordinates);
        reason.add(dim);
        throw Fault{reason};
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
            Reason reason = listed(FaultKind::kCopyOutside, map, coordinates);
            reason.add(verb_of(is_write));
            reason.add(bytes);
            reason.add(hexadecimal(address));
            reason.add(hexadecimal(map.address));
            throw Fault{reason};
        }
    }
    observer.global(pointer, bytes, is_write);
}

// --- rows ---------------------------------------------------------------------------------------

// The units of a row that lie inside the tensor: [first, end).
struct InnerRange {
    uint32_t first;
    uint32_t end;

    InnerRange(const TensorMapView& map, int64_t start, int64_t extent) {
        const int64_t units = map.row_units;
        first = static_cast<uint32_t>(std::clamp<int64_t>(-start, 0, units));
        end = static_cast<uint32_t>(std::clamp<int64_t>(extent - start, first, units));
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
            const int64_t place =
                map.lists_rows ? coordinates[dim + row]
                               : coordinates[dim] + int64_t{steps[dim]} * map.element_strides[dim];
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

// The bytes in the gaps of packed types, which the chip leaves undefined.
constexpr uint8_t kGap = 0xa5;

// Copies units to shared memory, with their gaps.
inline void copy_units(
    const TensorMapView& map, uint8_t* target, const uint8_t* source, uint32_t units
) {
    if (map.unit_bytes == map.shared_unit_bytes) {
        std::memcpy(target, source, units * map.unit_bytes);
        return;
    }
    std::memset(target, kGap, units * map.shared_unit_bytes);
    for (uint32_t unit = 0; unit < units; ++unit) {
        std::memcpy(
            target + unit * map.shared_unit_bytes, source + unit * map.unit_bytes, map.unit_bytes
        );
    }
}

// Measured: for a load with no element in bounds, the chip touches the map's address, and faults
// without memory there.
template <class Observer>
void check_address_of(Observer& observer, const TensorMapView& map, const int32_t* coordinates) {
    const auto* pointer = reinterpret_cast<const void*>(map.address);
    if constexpr (requires { observer.is_inside(pointer, uint64_t{1}); }) {
        if (observer.is_inside(pointer, 1)) return;
        Reason reason = listed(FaultKind::kLoadOutside, map, coordinates);
        reason.add(hexadecimal(map.address));
        throw Fault{reason};
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
    const uint32_t bytes = (inner.end - inner.first) * map.unit_bytes;
    const uint64_t start = address + uint64_t{inner.first} * map.unit_bytes;
    const auto* source = reinterpret_cast<const uint8_t*>(start);
    if (bytes) access_global(observer, map, coordinates, start, bytes, false);
    const bool is_copied = !is_tf32(map.type) && map.unit_bytes == map.shared_unit_bytes;
    if (bytes == map.row_bytes && is_copied) {
        image.write(at, source, bytes);
        return;
    }
    alignas(kUnitBytes) uint8_t row[kMaxRowBytes];
    uint8_t* const inside = row + inner.first * map.shared_unit_bytes;
    fill_row(map, row);
    if (bytes) copy_units(map, inside, source, inner.end - inner.first);
    if (is_tf32(map.type)) round_row_to_tf32(inside, bytes);
    image.write(at, row, map.row_bytes);
}

}  // namespace detail

}  // namespace tmaasync_emulate
