#pragma once

// The epilogue: rounds a consumer's accumulators, stages them in shared memory and stores them with
// TMA, chunk by chunk.
#include "pipeline.cuh"

namespace tmaasync {

// A chunk's lines are rows or columns of the output: see config.cuh.
__device__ u32 offset_in_chunk(int line, int byte) {
    return swizzled<CTile::kSwizzle>(line * kLineBytes + byte);
}

// The shared address of a unit (16 bytes) of a line.
__device__ u32 unit_address(const typename CTile::Shared& chunk, int line, int unit) {
    return ptx::shared_address(chunk.bytes) + offset_in_chunk(line, unit * 16);
}

// 16-bit output: four 8x8 matrices a time. A lane gives the address of one row of one matrix.
template <typename T>
__device__ void write_rows_16bit(
    typename CTile::Shared& chunk,
    const Accumulator (&accumulators)[kOutputSliceColumns / 2],
    int first
) {
    const int lane = lane_index();
    const int row = threadIdx.x % kWarpgroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int unit = 0; unit < kLineBytes / 16; unit += 2) {
        const Accumulator* s = accumulators + first + unit * 4;
        ptx::stmatrix_x4(
            unit_address(chunk, row, unit + lane / 16), accumulator_pair<T>(s, 0),
            accumulator_pair<T>(s, 1), accumulator_pair<T>(s, 2), accumulator_pair<T>(s, 3)
        );
    }
}

// 32-bit output: a lane holds two neighbouring columns of rows lane / 4 and lane / 4 + 8.
__device__ void write_rows_32bit(
    typename CTile::Shared& chunk,
    const Accumulator (&accumulators)[kOutputSliceColumns / 2],
    int first
) {
    struct alignas(8) Pair {
        Accumulator low, high;
    };
    const int lane = lane_index();
    const int row = threadIdx.x % kWarpgroupThreads / 32 * 16 + lane / 4;
#pragma unroll
    for (int eight = 0; eight < kChunkColumns / 8; ++eight) {
        const Accumulator* s = accumulators + first + eight * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 offset = offset_in_chunk(row + 8 * half, eight * 32 + lane % 4 * 8);
            auto* pair = reinterpret_cast<Pair*>(chunk.bytes + offset);
            *pair = {s[2 * half], s[2 * half + 1]};
        }
    }
}

// 16-bit M-major output: lines of the chunk are columns, so stmatrix transposes the two matrices of
// a warp.
template <typename T>
__device__ void write_columns_16bit(
    typename CTile::Shared& chunk,
    const Accumulator (&accumulators)[kOutputSliceColumns / 2],
    int first
) {
    const int lane = lane_index();
    const int unit = threadIdx.x % kWarpgroupThreads / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int column = 0; column < kChunkColumns; column += 8) {
        const Accumulator* s = accumulators + first + column / 2;
        ptx::stmatrix_x2_trans(
            unit_address(chunk, column + lane % 8, unit), accumulator_pair<T>(s, 0),
            accumulator_pair<T>(s, 1)
        );
    }
}

// 32-bit M-major output: 32 rows to a line, the other 32 in the second box.
__device__ void write_columns_32bit(
    typename CTile::Shared& chunk,
    const Accumulator (&accumulators)[kOutputSliceColumns / 2],
    int first
) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
        const int row = threadIdx.x % kWarpgroupThreads / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const u32 offset = offset_in_chunk(column, row % 32 * 4);
        *reinterpret_cast<Accumulator*>(chunk.bytes + row / 32 * CTile::kBoxBytes + offset) =
            accumulators[first + i];
    }
}

__device__ void write_chunk(
    typename CTile::Shared& chunk,
    const Accumulator (&accumulators)[kOutputSliceColumns / 2],
    int first
) {
    constexpr bool kIs16Bit = sizeof(Output) == 2;
    if constexpr (C_IS_N_MAJOR && kIs16Bit) {
        write_rows_16bit<Output>(chunk, accumulators, first);
    } else if constexpr (C_IS_N_MAJOR) {
        write_rows_32bit(chunk, accumulators, first);
    } else if constexpr (kIs16Bit) {
        write_columns_16bit<Output>(chunk, accumulators, first);
    } else {
        write_columns_32bit(chunk, accumulators, first);
    }
}

// The interface of an epilogue's operations on the accumulators before they are rounded, and the
// one that leaves them as they are.
struct IdentityEpilogue {
    // Works on all that this CTA stores of a tile. It may consume stages that the producer filled
    // after the tile's operands.
    template <typename Tile>
    __device__ void apply(OutputSlice&, StageState&, const Tile&) const {}
    // Works on the columns of one chunk.
    __device__ void apply_chunk(Accumulator*) const {}
};

// Stores a row block. The consumer's chunks alternate between its epilogue buffers, across tiles
// too: `chunks` counts them.
template <typename Storage, typename Epilogue, typename Tile>
__device__ void store_row_block(
    Storage& shared,
    u32& chunks,
    Accumulator (&accumulators)[kOutputSliceColumns / 2],
    const Epilogue& epilogue,
    const CTile& c,
    int consumer,
    int row_block,
    const Tile& tile
) {
    const NamedBarrier<kWarpgroupThreads> warpgroup{1u + consumer};
    const bool leads = threadIdx.x % kWarpgroupThreads == 0;
#pragma unroll
    for (int index = 0; index < kChunks; ++index, ++chunks) {
        auto& chunk = shared.epilogue[consumer][chunks % kEpilogueBuffers];
        // The store that read this buffer before has finished reading.
        if (leads) wait_group_read<kEpilogueBuffers - 1>();
        warpgroup.sync();
        epilogue.apply_chunk(accumulators + index * kChunkColumns / 2);
        write_chunk(chunk, accumulators, index * kChunkColumns / 2);
        fence_async_view_proxy();
        warpgroup.sync();
        if (leads) {
            const int row = consumer_row(consumer) + row_block * kMmaRows;
            tile.template store<C_IS_N_MAJOR>(c, chunk, row, index * kChunkColumns);
            commit_group();
        }
    }
}

template <typename Storage, typename Epilogue, typename Tile>
__device__ void store_tile(
    Storage& shared,
    u32& chunks,
    OutputSlice& accumulators,
    const Epilogue& epilogue,
    const CTile& c,
    int consumer,
    const Tile& tile
) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
        store_row_block(
            shared, chunks, accumulators[row_block], epilogue, c, consumer, row_block, tile
        );
    }
}

// Waits until TMA has read the warpgroup's stores.
__device__ void wait_for_stores() {
    if (threadIdx.x % kWarpgroupThreads == 0) wait_group_read<0>();
}

}  // namespace tmaasync
