// Loads through an im2col map.
#pragma once

#include <cstdint>

#include "tma/rows.hpp"

namespace tmaasync_emulate {

namespace detail {

// PTX ISA: an offset has 16, 8 or 5 bits at rank 3, 4 or 5.
inline void check_offsets(const TensorMapView& map, const uint16_t* offsets) {
    const int bits = map.rank == 3 ? 16 : map.rank == 4 ? 8 : 5;
    for (int spatial = 0; spatial < map.rank - 2; ++spatial) {
        if (offsets[spatial] >> bits == 0) continue;
        fault(FaultKind::kIm2colOffset, spatial, offsets[spatial], map.rank, 1 << bits);
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
        detail::fault(FaultKind::kIm2colInterleave);
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

}  // namespace tmaasync_emulate
