#pragma once

#include <tmaasync/activation.cuh>
#include <tmaasync/epilogue.cuh>
#include <tmaasync/ring.cuh>
#include <tmaasync/softmax.cuh>

// Visitors of an epilogue: operations that are fused into a GEMM. Pass them to Epilogue::store in
// the order in which they apply.
namespace tmaasync {

// accumulators *= factor
struct Scale {
    float factor;

    template <int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        float (&accumulators)[kRowBlocks][kCount], const Tile&
    ) const {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) accumulators[row_block][i] *= factor;
        }
    }
};

// --- bias ----------------------------------------------------------------------------------------

// Adds bias[column]; the output has this many columns. Its pointer is aligned to two elements.
// kMayBatch: eight loads of the bias are in flight at once, where a warpgroup has 64 rows. Say
// false if registers are short: accumulators of more than 64 rows leave none for the batches, nor
// do three consumer warpgroups, nor a visitor that holds much else, such as an addend.
template <typename Element, bool kMayBatch = true>
struct ColumnBias {
    const Element* bias;
    int columns;

    template <int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        float (&accumulators)[kRowBlocks][kCount], const Tile& tile
    ) const {
        const int first = tile.n + static_cast<int>(lane_index()) % 4 * 2;
        if constexpr (kMayBatch && kRowBlocks == 1) {
            add_in_batches(accumulators, tile.n, first);
        } else {
            add_eights<false, 0, kCount / 4>(accumulators, first);
        }
    }

private:
    static constexpr int kEightsInFlight = 8;

    struct alignas(2 * sizeof(Element)) Pair {
        Element low, high;
    };

    // The bias of two neighbouring columns. Columns beyond the last are not stored.
    template <bool kIsInBounds>
    __device__ __forceinline__ Pair load(int column) const {
        if (kIsInBounds || column + 1 < columns) {
            return *reinterpret_cast<const Pair*>(bias + column);
        }
        return {column < columns ? bias[column] : Element(0.0f), Element(0.0f)};
    }

    // The kFirst-th to kEnd-th eight columns; `first` is the thread's first column. Loads without a
    // branch between them are in flight together.
    template <bool kIsInBounds, int kFirst, int kEnd, int kRowBlocks, int kCount>
    __device__ __forceinline__ void add_eights(
        float (&accumulators)[kRowBlocks][kCount], int first
    ) const {
#pragma unroll
        for (int eight = kFirst; eight < kEnd; ++eight) {
            const auto pair = load<kIsInBounds>(first + eight * 8);
            const auto low = static_cast<float>(pair.low), high = static_cast<float>(pair.high);
#pragma unroll
            for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
                float* s = accumulators[row_block] + eight * 4;
                s[0] += low;
                s[1] += high;
                s[2] += low;
                s[3] += high;
            }
        }
    }

    template <int kFirst = 0, int kRowBlocks, int kCount>
    __device__ __forceinline__ void add_in_batches(
        float (&accumulators)[kRowBlocks][kCount], int n, int first
    ) const {
        constexpr int kEights = kCount / 4;
        constexpr int kEnd =
            kFirst + kEightsInFlight < kEights ? kFirst + kEightsInFlight : kEights;
        if (n + kEnd * 8 <= columns) {
            add_eights<true, kFirst, kEnd>(accumulators, first);
        } else {
            add_eights<false, kFirst, kEnd>(accumulators, first);
        }
        if constexpr (kEnd < kEights) add_in_batches<kEnd>(accumulators, n, first);
    }
};

// Adds bias[row]; the output has this many rows. Rows beyond the last are not stored.
template <typename Element>
struct RowBias {
    const Element* bias;
    int rows;

    template <int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        float (&accumulators)[kRowBlocks][kCount], const Tile& tile
    ) const {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row =
                    tile.m + row_block * 64 + accumulator_row(thread_in_warpgroup(), 2 * half);
                const float value = row < rows ? static_cast<float>(bias[row]) : 0.0f;
#pragma unroll
                for (int i = 2 * half; i < kCount; i += 4) {
                    accumulators[row_block][i] += value;
                    accumulators[row_block][i + 1] += value;
                }
            }
        }
    }
};

// --- activation ----------------------------------------------------------------------------------

template <Activation kActivation>
struct Activate {
    template <int kCount, typename Tile>
    __device__ __forceinline__ void apply_chunk(float (&chunk)[kCount], const Tile&) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) chunk[i] = activated<kActivation>(chunk[i]);
    }
};

// --- row statistics ------------------------------------------------------------------------------

// Calls emit(row, sum) once for every row of the tile below `rows`: the sum of map(value, row,
// column) over the tile's columns below `columns`. The sum of a whole row is the sum over tiles:
// emit adds it to global memory, for example with atomicAdd. Does not change the accumulators.
template <typename Map, typename Emit>
struct RowSums {
    Map map;
    Emit emit;
    int rows;
    int columns;

    __device__ __forceinline__ RowSums(Map map, Emit emit, int rows, int columns)
        : map(map), emit(emit), rows(rows), columns(columns) {}

    template <typename Register, int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        Register (&accumulators)[kRowBlocks][kCount], const Tile& tile
    ) const {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row =
                    tile.m + row_block * 64 + accumulator_row(thread_in_warpgroup(), 2 * half);
                const float sum =
                    sum_of_row(own_sum(accumulators[row_block] + 2 * half, kCount, row, tile.n));
                if (lane_index() % 4 == 0 && row < rows) emit(row, sum);
            }
        }
    }

private:
    // Of the thread's own columns of a row: two of every eight.
    template <typename Register>
    __device__ __forceinline__ float own_sum(
        const Register* accumulators, int count, int row, int n
    ) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < count; i += 4) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int column = n + accumulator_column(thread_in_warpgroup(), i + j);
                if (column < columns) sum += map(accumulators[i + j], row, column);
            }
        }
        return sum;
    }
};

// --- addend --------------------------------------------------------------------------------------

// A matrix like the output (CUTLASS calls it the source, C), of cooperative consumers with kRows
// rows each. Its chunks pass through the ring after the operands of their tile, so that they arrive
// while the tile is still being multiplied. A stage holds as many chunks of each consumer as fit
// for all of them.
template <typename Epilogue, typename Stage, int kConsumers, int kRows>
struct AddendChunks {
    using Chunk = typename Epilogue::Chunk;
    using Shared = typename Chunk::Shared;
    static constexpr int kConsumerChunks = kRows / Chunk::kRows * Epilogue::kChunks;
    static constexpr int kChunksPerStage = sizeof(Stage) / (kConsumers * sizeof(Shared));

    __device__ __forceinline__ static Shared& chunk(Stage& stage, int consumer, int index) {
        return reinterpret_cast<Shared*>(&stage)[index * kConsumers + consumer];
    }

    // Load the chunks of a tile, by the producer, after the tile's operands.
    template <typename Producer, typename CTile, typename Tile>
    __device__ __forceinline__ static void load(
        Producer& producer, const CTile& addend, const Tile& tile
    ) {
        static_assert(kChunksPerStage > 0, "a stage holds a chunk for every consumer");
        for (int first = 0; first < kConsumerChunks; first += kChunksPerStage) {
            const int chunks = min(kChunksPerStage, kConsumerChunks - first);
            const auto stage = producer.acquire(chunks * kConsumers * CTile::kBytes);
            for (int i = 0; i < chunks * kConsumers; ++i) {
                const int index = first + i / kConsumers, consumer = i % kConsumers;
                const int row = consumer * kRows + index / Epilogue::kChunks * Chunk::kRows;
                const int column = index % Epilogue::kChunks * Chunk::kColumns;
                auto& shared = chunk(*stage, consumer, i / kConsumers);
                issue_at<CTile, Chunk::kMajor>(tile, row, column, [&](const auto&... at) {
                    addend.async_copy(shared, stage.full(), at...);
                });
            }
        }
    }
};

// accumulators += factor * addend, by consumer `number` of a ring's consumers. Chunks is an
// AddendChunks.
template <typename Chunks, typename Consumer>
struct Addend {
    Consumer& consumer;
    int number;
    float factor;

    template <int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        float (&accumulators)[kRowBlocks][kCount], const Tile&
    ) const {
        constexpr int kAll = Chunks::kConsumerChunks, kPerStage = Chunks::kChunksPerStage;
        constexpr int kPerRowBlock = kAll / kRowBlocks;
#pragma unroll
        for (int first = 0; first < kAll; first += kPerStage) {
            consumer.wait();
            auto& stage = consumer.peek();
#pragma unroll
            for (int i = first; i < min(first + kPerStage, kAll); ++i) {
                float* s = accumulators[i / kPerRowBlock] +
                           i % kPerRowBlock * (Chunks::Chunk::kColumns / 2);
                const auto& chunk = Chunks::chunk(stage, number, i - first);
                Chunks::Chunk::read(chunk, [&](int j, float low, float high) {
                    s[j] += factor * low;
                    s[j + 1] += factor * high;
                });
            }
            consumer.template release<Proxy::kGeneric>(consumer.index());
            consumer.step();
        }
    }
};

}  // namespace tmaasync
