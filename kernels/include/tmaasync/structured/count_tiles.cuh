#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync {

// Integer types: an extent, a coordinate, or a number of tiles or blocks is an `int` of at least 0.
// An extent plus a tile fits in it up to the host's MAX_EXTENT (tmaasync/ops/_extents.py), which
// every operation checks. Two of them are multiplied as i64 where no array bounds the result.

// The tiles that cover an extent; right for every int of at least 0.
__device__ __forceinline__ constexpr int count_tiles(int extent, int side) {
    return static_cast<int>((static_cast<u32>(extent) + side - 1) / side);
}

}  // namespace tmaasync
