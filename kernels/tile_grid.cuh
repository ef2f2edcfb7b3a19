// The tiles that cover an array, as kernels number them.
#pragma once
#include <tmaasync/tmaasync.cuh>

namespace tmaasync::kernels {

// Tiles of the array along each dimension, innermost first; 1 beyond the rank. A parameter that the
// host packs.
struct TileGrid {
    i32 tiles[5];

    template <int kDims = 5>
    __device__ i64 count() const {
        i64 count = 1;
        for (int dim = 0; dim < kDims; ++dim) count *= tiles[dim];
        return count;
    }

    // Where a tile starts along the innermost kDims dimensions, by its index among their tiles.
    template <typename Tile, int kDims>
    __device__ Coordinates<Tile::kRank> start_of(i64 index) const {
        Coordinates<Tile::kRank> at;
#pragma unroll
        for (int dim = 0; dim < kDims; ++dim) {
            at.values[dim] =
                static_cast<i32>(index % tiles[dim]) * Tile::tile_step(Tile::kRank - 1 - dim);
            index /= tiles[dim];
        }
        return at;
    }
};
static_assert(sizeof(TileGrid) == 20);

}  // namespace tmaasync::kernels
