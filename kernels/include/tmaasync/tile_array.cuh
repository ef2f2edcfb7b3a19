#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/address.cuh>
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
        // Not tiles[index]: a shift by 7 and an addition of 64 bits, of which ptxas 12.9 and 13.0
        // may drop the upper 32 (docs/decisions/ptxas.md).
        char* const first = reinterpret_cast<char*>(tiles);
        const u64 offset = ptx::mul_wide(static_cast<u32>(index), sizeof(Tile));
        return *reinterpret_cast<Tile*>(first + offset);
    }
};

}  // namespace tmaasync
