#pragma once

// The addend of the epilogue: a matrix like the output (CUTLASS calls it the source, C). Its chunks
// pass through the pipeline after the operands of their tile, so that they arrive while the tile is
// still being multiplied. The host defines HAS_ADDEND.
#include "epilogue.cuh"
#include "scheduler.cuh"

namespace tmaasync {

using Chunk = typename CTile::Shared;

constexpr int kConsumerChunks = kRowBlocks * kChunks;
// A stage holds as many chunks of each consumer as fit for all of them.
constexpr int kChunksPerStage = sizeof(Stage) / (CONSUMERS * sizeof(Chunk));

static_assert(
    !HAS_ADDEND || !PING_PONG, "ping-pong consumers skip each other's stages, operands alone"
);
static_assert(!HAS_ADDEND || SPLIT_K == 1, "with split-K the stages hold partial accumulators");
static_assert(!HAS_ADDEND || kChunksPerStage > 0, "a stage holds a chunk for every consumer");

__device__ Chunk& addend_chunk(Stage& stage, int consumer, int index) {
    return reinterpret_cast<Chunk*>(&stage)[index * CONSUMERS + consumer];
}

__device__ void load_addend(
    OperandProducer& producer, const CTile& addend, const OutputTile& tile
) {
    for (int first = 0; first < kConsumerChunks; first += kChunksPerStage) {
        const int chunks = min(kChunksPerStage, kConsumerChunks - first);
        const auto stage = producer.acquire(chunks * CONSUMERS * CTile::kBytes);
        for (int i = 0; i < chunks * CONSUMERS; ++i) {
            const int index = i / CONSUMERS, consumer = i % CONSUMERS;
            const int row_block = (first + index) / kChunks, column = (first + index) % kChunks;
            const int row = consumer * ROWS + row_block * kMmaRows;
            auto& chunk = addend_chunk(*stage, consumer, index);
            tile.template load<C_IS_N_MAJOR>(
                addend, chunk, stage.full(), row, column * kChunkColumns
            );
        }
    }
}

// Adds two neighbouring elements of type T, the first in the low half.
template <typename T>
__device__ void add_pair(float* accumulators, u32 pair, float factor) {
    const float2 values = unpack_pair<T>(pair);
    accumulators[0] += factor * values.x;
    accumulators[1] += factor * values.y;
}

// Each lane reads where write_rows_16bit has it write. The same holds for the other layouts.
template <typename T>
__device__ void add_rows_16bit(const Chunk& chunk, float* accumulators, float factor) {
    const int lane = lane_index();
    const int row = threadIdx.x % kWarpgroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int unit = 0; unit < kLineBytes / 16; unit += 2) {
        u32 pairs[4];
        ptx::ldmatrix_x4(
            unit_address(chunk, row, unit + lane / 16), pairs[0], pairs[1], pairs[2], pairs[3]
        );
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            add_pair<T>(accumulators + unit * 4 + 2 * i, pairs[i], factor);
        }
    }
}

__device__ void add_rows_32bit(const Chunk& chunk, float* accumulators, float factor) {
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; i += 2) {
        const int row = accumulator_row(thread_in_warpgroup(), i);
        const int column = accumulator_column(thread_in_warpgroup(), i);
        const u32 offset = offset_in_chunk(row, column * 4);
        const float2 pair = *reinterpret_cast<const float2*>(chunk.bytes + offset);
        accumulators[i] += factor * pair.x;
        accumulators[i + 1] += factor * pair.y;
    }
}

template <typename T>
__device__ void add_columns_16bit(const Chunk& chunk, float* accumulators, float factor) {
    const int lane = lane_index();
    const int unit = threadIdx.x % kWarpgroupThreads / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int column = 0; column < kChunkColumns; column += 8) {
        u32 pairs[2];
        ptx::ldmatrix_x2_trans(unit_address(chunk, column + lane % 8, unit), pairs[0], pairs[1]);
        add_pair<T>(accumulators + column / 2, pairs[0], factor);
        add_pair<T>(accumulators + column / 2 + 2, pairs[1], factor);
    }
}

__device__ void add_columns_32bit(const Chunk& chunk, float* accumulators, float factor) {
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
        const int row = accumulator_row(thread_in_warpgroup(), i);
        const int column = accumulator_column(thread_in_warpgroup(), i);
        const u32 offset = row / 32 * CTile::kBoxBytes + offset_in_chunk(column, row % 32 * 4);
        accumulators[i] += factor * *reinterpret_cast<const float*>(chunk.bytes + offset);
    }
}

__device__ void add_chunk(const Chunk& chunk, float* accumulators, float factor) {
    constexpr bool kIs16Bit = sizeof(Output) == 2;
    if constexpr (C_IS_N_MAJOR && kIs16Bit) {
        add_rows_16bit<Output>(chunk, accumulators, factor);
    } else if constexpr (C_IS_N_MAJOR) {
        add_rows_32bit(chunk, accumulators, factor);
    } else if constexpr (kIs16Bit) {
        add_columns_16bit<Output>(chunk, accumulators, factor);
    } else {
        add_columns_32bit(chunk, accumulators, factor);
    }
}

// Adds the addend times `factor`, chunk by chunk in the order of load_addend.
__device__ void add_addend(
    SharedMemory& shared, StageState& state, OutputSlice& accumulators, int consumer, float factor
) {
#pragma unroll
    for (int first = 0; first < kConsumerChunks; first += kChunksPerStage) {
        shared.ring.consumer_wait(state);
        Stage& stage = shared.ring.stages[state.index];
#pragma unroll
        for (int i = first; i < min(first + kChunksPerStage, kConsumerChunks); ++i) {
            const Chunk& chunk = addend_chunk(stage, consumer, i - first);
            add_chunk(chunk, accumulators[i / kChunks] + i % kChunks * (kChunkColumns / 2), factor);
        }
        shared.ring.consumer_release<Proxy::kGeneric>(state.index);
        state.step();
    }
}

}  // namespace tmaasync
