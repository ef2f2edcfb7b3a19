#pragma once

// A matrix of the output's type that is added to the product. Its chunks pass through the ring
// behind the operands of their tile, so that they arrive while the tile is still being multiplied.
// The host defines HAS_ADDEND.
#include "epilogue.cuh"
#include "scheduler.cuh"

namespace tmaasync {

using Chunk = typename CTile::Shared;

constexpr int kGroupChunks = kParts * kChunks;
// Of each group as many chunks in a stage as fit for all of them.
constexpr int kChunksPerStage = sizeof(SharedMemory::Stage) / (CONSUMERS * sizeof(Chunk));
constexpr int kAddendStages = kChunksPerStage == 0 ? 0 : ceil_div(kGroupChunks, kChunksPerStage);

static_assert(!HAS_ADDEND || !PING_PONG, "in turns a tile has nothing behind its operands");
static_assert(!HAS_ADDEND || SPLIT_K == 1, "the ring has no place for it beside partial sums");
static_assert(!HAS_ADDEND || kChunksPerStage > 0, "a stage holds a chunk for every consumer");

__device__ Chunk& addend_chunk(SharedMemory& shared, u32 stage, int consumer, int index) {
    auto* chunks = reinterpret_cast<Chunk*>(&shared.stages[stage]);
    return chunks[index * CONSUMERS + consumer];
}

__device__ void load_addend(
    SharedMemory& shared, Ring& place, const CTile& addend, const TileWalk::Start& start
) {
    for (int first = 0; first < kGroupChunks; first += kChunksPerStage, place.step()) {
        auto& full = shared.full[place.index];
        const int chunks = min(kChunksPerStage, kGroupChunks - first);
        shared.empty[place.index].wait(place.phase);
        full.expect_bytes(chunks * CONSUMERS * CTile::kBytes);
        for (int i = 0; i < chunks * CONSUMERS; ++i) {
            const int index = i / CONSUMERS, consumer = i % CONSUMERS;
            const int part = (first + index) / kChunks, column = (first + index) % kChunks;
            const int row = consumer * ROWS + part * kInstructionRows;
            auto& chunk = addend_chunk(shared, place.index, consumer, index);
            start.load(addend, chunk, full, row, column * kChunkColumns);
        }
    }
}

// Adds two neighbours of type T, the first in the low half.
template <typename T>
__device__ void add_pair(float* sums, u32 pair, float factor) {
    const float2 values = unpack_pair<T>(pair);
    sums[0] += factor * values.x;
    sums[1] += factor * values.y;
}

// Each lane reads what write_rows_16bit would have it write, and so on.
template <typename T>
__device__ void add_rows_16bit(const Chunk& chunk, float* sums, float factor) {
    const int lane = lane_index();
    const int row = threadIdx.x % kGroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int unit = 0; unit < kLineBytes / 16; unit += 2) {
        u32 pairs[4];
        ptx::ldmatrix_x4(
            unit_address(chunk, row, unit + lane / 16), pairs[0], pairs[1], pairs[2], pairs[3]
        );
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            add_pair<T>(sums + unit * 4 + 2 * i, pairs[i], factor);
        }
    }
}

__device__ void add_rows_32bit(const Chunk& chunk, float* sums, float factor) {
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; i += 2) {
        const int row = accumulator_row(thread_in_warpgroup(), i);
        const int column = accumulator_column(thread_in_warpgroup(), i);
        const u32 offset = offset_in_chunk(row, column * 4);
        const float2 pair = *reinterpret_cast<const float2*>(chunk.bytes + offset);
        sums[i] += factor * pair.x;
        sums[i + 1] += factor * pair.y;
    }
}

template <typename T>
__device__ void add_columns_16bit(const Chunk& chunk, float* sums, float factor) {
    const int lane = lane_index();
    const int unit = threadIdx.x % kGroupThreads / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int column = 0; column < kChunkColumns; column += 8) {
        u32 pairs[2];
        ptx::ldmatrix_x2_trans(unit_address(chunk, column + lane % 8, unit), pairs[0], pairs[1]);
        add_pair<T>(sums + column / 2, pairs[0], factor);
        add_pair<T>(sums + column / 2 + 2, pairs[1], factor);
    }
}

__device__ void add_columns_32bit(const Chunk& chunk, float* sums, float factor) {
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
        const int row = accumulator_row(thread_in_warpgroup(), i);
        const int column = accumulator_column(thread_in_warpgroup(), i);
        const u32 offset = row / 32 * CTile::kBoxBytes + offset_in_chunk(column, row % 32 * 4);
        sums[i] += factor * *reinterpret_cast<const float*>(chunk.bytes + offset);
    }
}

__device__ void add_chunk(const Chunk& chunk, float* sums, float factor) {
    constexpr bool kIs16Bit = sizeof(Output) == 2;
    if constexpr (C_IS_N_MAJOR && kIs16Bit) {
        add_rows_16bit<Output>(chunk, sums, factor);
    } else if constexpr (C_IS_N_MAJOR) {
        add_rows_32bit(chunk, sums, factor);
    } else if constexpr (kIs16Bit) {
        add_columns_16bit<Output>(chunk, sums, factor);
    } else {
        add_columns_32bit(chunk, sums, factor);
    }
}

// The warp's lanes have read the stage, which unlike wgmma's reads their arrival has to order, also
// for the CTAs whose multicast writes there next.
__device__ void release_read_stage(SharedMemory& shared, u32 stage) {
    __syncwarp();
    if constexpr (CLUSTER == 1) {
        if (lane_index() == 0) shared.empty[stage].arrive();
    } else {
        if (lane_index() < CLUSTER) shared.empty[stage].arrive_cluster(lane_index());
    }
}

// Adds the addend times `factor`, chunk by chunk as load_addend puts them into the ring.
__device__ void add_addend(
    SharedMemory& shared, Ring& place, Share& sums, int consumer, float factor
) {
#pragma unroll
    for (int first = 0; first < kGroupChunks; first += kChunksPerStage) {
        shared.full[place.index].wait(place.phase);
#pragma unroll
        for (int i = first; i < min(first + kChunksPerStage, kGroupChunks); ++i) {
            const Chunk& chunk = addend_chunk(shared, place.index, consumer, i - first);
            add_chunk(chunk, sums[i / kChunks] + i % kChunks * (kChunkColumns / 2), factor);
        }
        release_read_stage(shared, place.index);
        place.step();
    }
}

}  // namespace tmaasync
