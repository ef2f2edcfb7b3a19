#pragma once

// The way of a group's sums to global memory: rounded, through shared memory, chunk by chunk.
#include "pipeline.cuh"

namespace tmaasync {

// A chunk is lines of the output in its memory's order: rows, or columns.
__device__ u32 offset_in_chunk(int line, int byte) {
    return swizzled<CTile::kSwizzle>(line * kLineBytes + byte);
}

// Where unit (16 bytes) of a line lies.
__device__ u32 unit_address(const typename CTile::Shared& chunk, int line, int unit) {
    return ptx::shared_address(chunk.bytes) + offset_in_chunk(line, unit * 16);
}

// 16-bit output: four 8x8 matrices a time. A lane gives the address of one row of one matrix.
template <typename T>
__device__ void write_rows_16bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    const int lane = lane_index();
    const int row = threadIdx.x % kGroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int unit = 0; unit < kLineBytes / 16; unit += 2) {
        const Sum* s = sums + first + unit * 4;
        ptx::stmatrix_x4(
            unit_address(chunk, row, unit + lane / 16), accumulator_pair<T>(s, 0),
            accumulator_pair<T>(s, 1), accumulator_pair<T>(s, 2), accumulator_pair<T>(s, 3)
        );
    }
}

// 32-bit output: a lane holds two neighbouring columns of rows lane / 4 and lane / 4 + 8.
__device__ void write_rows_32bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    struct alignas(8) Pair {
        Sum low, high;
    };
    const int lane = lane_index();
    const int row = threadIdx.x % kGroupThreads / 32 * 16 + lane / 4;
#pragma unroll
    for (int eight = 0; eight < kChunkColumns / 8; ++eight) {
        const Sum* s = sums + first + eight * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 offset = offset_in_chunk(row + 8 * half, eight * 32 + lane % 4 * 8);
            auto* pair = reinterpret_cast<Pair*>(chunk.bytes + offset);
            *pair = {s[2 * half], s[2 * half + 1]};
        }
    }
}

// 16-bit output whose columns are contiguous: lines of the chunk are columns, so the two matrices
// of a warp are transposed on the way.
template <typename T>
__device__ void write_columns_16bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    const int lane = lane_index();
    const int unit = threadIdx.x % kGroupThreads / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int column = 0; column < kChunkColumns; column += 8) {
        const Sum* s = sums + first + column / 2;
        ptx::stmatrix_x2_trans(
            unit_address(chunk, column + lane % 8, unit), accumulator_pair<T>(s, 0),
            accumulator_pair<T>(s, 1)
        );
    }
}

// 32-bit output whose columns are contiguous: 32 rows to a line, the other 32 in the second box.
__device__ void write_columns_32bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
        const int row = threadIdx.x % kGroupThreads / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const u32 offset = offset_in_chunk(column, row % 32 * 4);
        *reinterpret_cast<Sum*>(chunk.bytes + row / 32 * CTile::kBoxBytes + offset) =
            sums[first + i];
    }
}

__device__ void write_chunk(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    constexpr bool kIs16Bit = sizeof(Output) == 2;
    if constexpr (C_IS_N_MAJOR && kIs16Bit) {
        write_rows_16bit<Output>(chunk, sums, first);
    } else if constexpr (C_IS_N_MAJOR) {
        write_rows_32bit(chunk, sums, first);
    } else if constexpr (kIs16Bit) {
        write_columns_16bit<Output>(chunk, sums, first);
    } else {
        write_columns_32bit(chunk, sums, first);
    }
}

// What becomes of the sums before they are rounded: this is nothing. A tile's, whose rows and
// columns start there, may take from the ring what the producer put behind the tile's operands.
struct Untouched {
    template <typename Start>
    __device__ void tile(Share&, Ring&, const Start&) const {}
    // The sums of the columns of one chunk.
    __device__ void chunk(Sum*) const {}
};

// The group's output chunks take turns in its epilogue buffers, across tiles too: `chunks` counts
// them.
template <typename Shared, typename Finish, typename Start>
__device__ void store_part(
    Shared& shared,
    u32& chunks,
    Sum (&sums)[kShareColumns / 2],
    const Finish& finish,
    const CTile& c,
    int consumer,
    int part,
    const Start& start
) {
    const NamedBarrier<kGroupThreads> group{1u + consumer};
    const bool leads = threadIdx.x % kGroupThreads == 0;
#pragma unroll
    for (int index = 0; index < kChunks; ++index, ++chunks) {
        auto& chunk = shared.epilogue[consumer][chunks % kEpilogueBuffers];
        // The store that read this buffer before has finished reading.
        if (leads) wait_group_read<kEpilogueBuffers - 1>();
        group.sync();
        finish.chunk(sums + index * kChunkColumns / 2);
        write_chunk(chunk, sums, index * kChunkColumns / 2);
        fence_async_view_proxy();
        group.sync();
        if (leads) {
            const int row = group_row(consumer) + part * kInstructionRows;
            start.store(c, chunk, row, index * kChunkColumns);
            commit_group();
        }
    }
}

template <typename Shared, typename Finish, typename Start>
__device__ void store_sums(
    Shared& shared,
    u32& chunks,
    Share& sums,
    const Finish& finish,
    const CTile& c,
    int consumer,
    const Start& start
) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        store_part(shared, chunks, sums[part], finish, c, consumer, part, start);
    }
}

// What the group stored has been read.
__device__ void end_stores() {
    if (threadIdx.x % kGroupThreads == 0) wait_group_read<0>();
}

}  // namespace tmaasync
