// Loads, stores and reductions of a box through a tiled map.
#pragma once

#include <cstdint>

#include "tma/reduce.hpp"
#include "tma/rows.hpp"

namespace tmaasync_emulate {

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
    detail::check_kind(map, MapKind::kTiled);
    detail::check_shared_alignment(shared_offset, detail::kTensorAlignment);
    detail::check_inner_coordinate(map, coordinates);
    const detail::SharedImage image(map, cta_shared_base, shared_offset);
    const detail::InnerRange inner(map, detail::first_unit(map, coordinates), map.extents[0]);
    const detail::InnerRange nothing(map, 0, 0);
    const uint64_t first = detail::first_address(map, coordinates);
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
    return map.credited_bytes;
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
    check_kind(map, MapKind::kTiled);
    check_shared_alignment(image.offset, kTensorAlignment);
    check_not_negative(map, coordinates);
    check_inner_coordinate(map, coordinates);
    const InnerRange inner(map, first_unit(map, coordinates), map.extents[0]);
    const uint32_t inside_bytes = inner.end * map.shared_unit_bytes;
    const uint32_t written = inner.end * map.unit_bytes;
    const uint32_t bytes = (written + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
    const uint64_t first = first_address(map, coordinates);
    visit_rows(map, coordinates, [&](uint32_t row, uint64_t offset, bool is_inside) {
        if (!is_inside || inner.is_empty()) return;
        access_global(observer, map, coordinates, first + offset, bytes, true);
        image.report_source(observer, row * map.row_pitch_bytes, inside_bytes);
        move(row * map.row_pitch_bytes, reinterpret_cast<uint8_t*>(first + offset), bytes);
    });
    image.report(observer, map, false);
}

// Packs 16 elements, each in the low 6 bits of a byte, into 12 bytes.
inline void pack_6_bits(uint8_t* target, const uint8_t* bytes) {
    std::memset(target, 0, 12);
    for (int element = 0; element < 16; ++element) {
        const uint32_t value = (bytes[element] & 0x3f) << element * 6 % 8;
        target[element * 6 / 8] |= value & 0xff;
        if (value >> 8) target[element * 6 / 8 + 1] |= value >> 8;
    }
}

// PTX ISA: a store takes elements of 6 bits from bytes (.b6p2x16).
inline void store_packed_row(
    const SharedImage& image, uint32_t at, uint8_t* target, uint32_t bytes
) {
    for (uint32_t unit = 0; unit < bytes / 12; ++unit) {
        uint8_t held[16];
        image.read(at + 16 * unit, held, 16);
        pack_6_bits(target + 12 * unit, held);
    }
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
    if (map.type == ElementType::kPacked4Gaps) detail::fault(FaultKind::kLoadOnlyType);
    const detail::SharedImage image(map, cta_shared_base, shared_offset);
    const bool packs = map.type == ElementType::kPacked6Gaps;
    detail::for_stored_rows(
        observer, map, coordinates, image, [&](uint32_t at, uint8_t* target, uint32_t bytes) {
            packs ? detail::store_packed_row(image, at, target, bytes)
                  : image.read(at, target, bytes);
        }
    );
}

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
        detail::fault(FaultKind::kNoReduction, name(op), name(map.type));
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

}  // namespace tmaasync_emulate
