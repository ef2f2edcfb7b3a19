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

// --- along the width ----------------------------------------------------------------------------

// PTX ISA, "im2col::w and im2col::w::128 modes": the box is as high and as deep as one pixel. A
// column has `pixels_per_column` pixels, or 128. wHalo pixels more follow the last one, and in
// im2col::w::128 every 32nd. wOffset moves the box and the start.
struct WideColumn {
    uint32_t pixels;
    uint32_t pixels_of_group;  // a halo follows each group
    uint32_t halo;
    uint32_t offset;

    WideColumn(const TensorMapView& map, const uint16_t* offsets)
        : pixels(map.pixels), pixels_of_group(map.pixels), halo(offsets[0]), offset(offsets[1]) {
        if (map.kind == MapKind::kIm2colW) return;
        pixels = 128;
        pixels_of_group = 32;
    }

    uint32_t rows() const { return pixels + pixels / pixels_of_group * halo; }
};

inline void check_wide_offsets(MapKind kind, const uint16_t* offsets) {
    const int most = kind == MapKind::kIm2colW ? 511 : 31;
    if (offsets[0] > most) fault(FaultKind::kWideOffset, FaultKind::kHalo, offsets[0], most);
    if (offsets[1] > 31) fault(FaultKind::kWideOffset, FaultKind::kWidthOffset, offsets[1], 31);
}

// Calls visit(row, offset, is_inside) for every pixel of the column and its halos.
//
// Uncertain, for the ISA says it in figures alone: a halo begins after the pixel that it follows,
// and may leave the box; after the box's last pixel the column goes on in the next image.
template <class Visit>
void visit_wide_pixels(
    const TensorMapView& map, const int32_t* coordinates, const WideColumn& column, Visit visit
) {
    const int batch = map.rank - 1;
    const int64_t moved = column.offset, step = map.element_strides[1];
    const int64_t end = map.extents[1] + map.upper_corner[0] + moved;
    int64_t width = coordinates[1] + moved, image = coordinates[batch];
    uint32_t row = 0;
    const auto visit_at = [&](int64_t w) {
        uint64_t offset = static_cast<uint64_t>(w) * map.strides_bytes[1];
        bool is_inside = 0 <= w && w < map.extents[1];
        for (int dim = 2; dim <= batch; ++dim) {
            const int64_t place = dim == batch ? image : coordinates[dim];
            is_inside &= 0 <= place && place < map.extents[dim];
            offset += static_cast<uint64_t>(place) * map.strides_bytes[dim];
        }
        visit(row++, offset, is_inside);
    };
    for (uint32_t pixel = 1; pixel <= column.pixels; ++pixel) {
        visit_at(width);
        if (pixel % column.pixels_of_group == 0) {
            for (uint32_t beyond = 1; beyond <= column.halo; ++beyond) {
                visit_at(width + beyond * step);
            }
        }
        width += step;
        if (width < end) continue;
        width = map.lower_corner[0] + moved;
        image += map.element_strides[batch];
    }
}

}  // namespace detail

// The map of an instruction with these offsets: as many rows as it moves.
inline TensorMapView with_halo(TensorMapView map, const uint16_t* offsets) {
    detail::check_wide_offsets(map.kind, offsets);
    map.rows = detail::WideColumn(map, offsets).rows();
    detail::lay_out_rows(map);
    return map;
}

// Loads a column from global to shared memory through an im2col map of rank 3 to 5:
// `channels_per_pixel` channels of `pixels_per_column` pixels, pixel by pixel, then swizzled.
// `offsets` has one number per spatial dimension, innermost first; wHalo and wOffset for a map that
// is of the width, which with_halo() made. Returns the bytes to credit: all
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
    if (map.kind == MapKind::kTiled) detail::check_kind(map, MapKind::kIm2col);
    if (map.interleave != Interleave::kNone) {
        detail::fault(FaultKind::kIm2colInterleave);
    }
    detail::check_shared_alignment(shared_offset, detail::kTensorAlignment);
    detail::check_inner_coordinate(map, coordinates);
    const detail::SharedImage image(map, cta_shared_base, shared_offset);
    const detail::InnerRange inner(map, detail::first_unit(map, coordinates), map.extents[0]);
    const detail::InnerRange nothing(map, 0, 0);
    const uint64_t first = detail::first_address(map, coordinates);
    const auto load_pixel = [&](uint32_t pixel, uint64_t offset, bool is_inside) {
        detail::load_row(
            observer, map, coordinates, image, pixel * map.row_pitch_bytes, first + offset,
            is_inside ? inner : nothing
        );
    };
    if (map.kind == MapKind::kIm2col) {
        detail::check_offsets(map, offsets);
        detail::visit_pixels(map, coordinates, offsets, load_pixel);
    } else {
        detail::visit_wide_pixels(map, coordinates, {map, offsets}, load_pixel);
    }
    image.report(observer, map, true);
    return map.credited_bytes;
}

}  // namespace tmaasync_emulate
