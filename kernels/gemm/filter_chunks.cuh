#pragma once

// The chunks of channels in a stage of a convolution, which conv2d.cu explains.
#include <tmaasync/tile.cuh>

namespace tmaasync::kernels::gemm {

constexpr int kChunkChannels = BTile::box_side(3);
constexpr int kChunksPerStage = BTile::side(3) / kChunkChannels;

// The coordinates of a chunk of the filters at the column's channel and tap. Positions before and
// after a folded row of taps, and after the last tap, are fill.
template <typename Column>
__device__ __forceinline__ Coordinates<4> filters_at(const Column& column, int n) {
    const i32 s = static_cast<i32>(column.tap[0]), r = static_cast<i32>(column.tap[1]);
    if constexpr (FOLDED) {
        constexpr i32 kOutside = 1 << 24;
        const bool is_tap = column.channel() < kChunkChannels;
        return {is_tap ? s * kChunkChannels - FILTER_OFFSET : kOutside, 0, r, n};
    } else {
        return {column.channel(), s, r, n};
    }
}

}  // namespace tmaasync::kernels::gemm
