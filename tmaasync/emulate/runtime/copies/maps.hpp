// The tensor maps of copies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

#include "copies/map_history.hpp"
#include "schedule/faults.hpp"
#include "tma/rows.hpp"

namespace tmaasync_emulate {

TensorMapView decode_for(Fiber& fiber, const void* map);

// TMA swizzles by the address, and readers swizzle by the position in the tile. So a tile must
// start where the pattern does. Boxes smaller than the pattern share one.
void check_swizzle_alignment(Fiber& fiber, const TensorMapView& map, uint32_t shared);

// The kind of map that an instruction takes.
inline MapKind kind_of(BoxMode mode) {
    using enum BoxMode;
    if (mode == kTile || mode == kRows) return MapKind::kTiled;
    if (mode == kIm2col) return MapKind::kIm2col;
    return mode == kIm2colW ? MapKind::kIm2colW : MapKind::kIm2colW128;
}

// Gives the map of a gather4 or a scatter4 its four rows. Faults if its box has not one.
void take_rows(Fiber& fiber, TensorMapView& map);

// The map's present state and the box's start. Faults if the map has another rank.
template <typename Copy>
Copy copy_of(Fiber& fiber, const Box& box) {
    Copy copy{};
    copy.map = decode_for(fiber, box.map);
    if (static_cast<int>(copy.map.rank) != box.rank) {
        fail(fiber, {FaultKind::kMapRank, box.rank, copy.map.rank});
    }
    if (box.mode == BoxMode::kRows) take_rows(fiber, copy.map);
    std::copy_n(box.at, detail::coordinates_of(copy.map), copy.at.begin());
    const auto address = reinterpret_cast<uintptr_t>(box.map);
    const bool is_parameter = (address ^ stack_pointer()) < kStackBytes;
    copy.map_address = is_parameter ? 0 : address;
    if (copy.map_address) check_map_is_current(fiber, address);
    copy.bytes = copy.map.rows * copy.map.row_pitch_bytes;
    return copy;
}

}  // namespace tmaasync_emulate
