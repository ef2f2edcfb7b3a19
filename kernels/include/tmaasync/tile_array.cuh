#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/tensormap.cuh>

namespace tmaasync {

// Tiles in global memory, as the host's TMATensorTileArray lays them out. An index beyond them
// traps. Pass it by value.
template <typename Tile>
struct TMATensorTileArray {
    Tile* tiles;
    u64 count;

    // A tile that this thread may use at once, whether the host or another CTA wrote its map.
    __device__ __forceinline__ const Tile& operator[](u64 index) const {
        const Tile& tile = at(index);
        ptx::fence_proxy_tensormap_acquire_sys(&tile.map);
        return tile;
    }

    // A tile to edit, or to use again after operator[]. No fence.
    __device__ __forceinline__ Tile& at(u64 index) const {
        check_index("index", index, count);
        if (index >= count) instrument::trap_beyond("index", index, count);
        return tiles[index];
    }
};

}  // namespace tmaasync
