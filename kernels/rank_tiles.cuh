// Tiles of all ranks as parameters of a kernel, so that a launch can name other arrays.
#pragma once
#include <tmaasync/types.cuh>

namespace tmaasync::kernels {

// Call work(tile) for the tile of a rank. Not an array: a descriptor in the parameters is addressed
// by a constant.
template <typename Work, typename Tile, typename... Tiles>
__device__ __forceinline__ void with_tile_of(
    u32 rank, const Work& work, const Tile& first, const Tiles&... others
) {
    if constexpr (sizeof...(others) == 0) {
        work(first);
    } else if (rank == 0) {
        work(first);
    } else {
        with_tile_of(rank - 1, work, others...);
    }
}

// Call work(tile) for the tiles of the first `ranks` ranks.
template <typename Work, typename... Tiles>
__device__ __forceinline__ void for_each_rank(u32 ranks, const Work& work, const Tiles&... tiles) {
    u32 rank = 0;
    ((rank++ < ranks ? work(tiles) : void()), ...);
}

}  // namespace tmaasync::kernels
