#pragma once

#include <tmaasync/activation.cuh>
#include <tmaasync/structured/epilogue.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/warp_reductions.cuh>

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
template <typename Element>
struct ColumnBias {
    const Element* bias;
    int columns;

    // Accumulators of more than 64 rows leave no registers for an exchange between lanes.
    template <int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        float (&accumulators)[kRowBlocks][kCount], const Tile& tile
    ) const {
        constexpr int kEights = kCount / 4;  // of columns
        const int lane = lane_index();
        if constexpr (kRowBlocks == 1) {
            const WarpPairs<(kEights + 7) / 8> pairs(*this, tile.n, lane);
            add(accumulators, [&](int eight) { return pairs.of(eight, lane); });
        } else {
            const int first = tile.n + lane % 4 * 2;
            add(accumulators, [&](int eight) { return load(first + eight * 8); });
        }
    }

private:
    struct alignas(2 * sizeof(Element)) Pair {
        Element low, high;
    };

    // The bias of two neighbouring columns. Columns beyond the last are not stored.
    __device__ __forceinline__ Pair load(int column) const {
        if (column + 1 < columns) return *reinterpret_cast<const Pair*>(bias + column);
        return {column < columns ? bias[column] : Element(0.0f), Element(0.0f)};
    }

    // The bias of 64 kLoads columns, in the registers of a warp. All loads are in flight at once:
    // nothing overlaps a cooperative kernel's epilogue.
    template <int kLoads>
    struct WarpPairs {
        Pair pairs[kLoads];

        __device__ __forceinline__ WarpPairs(const ColumnBias& bias, int n, int lane) {
#pragma unroll
            for (int i = 0; i < kLoads; ++i) pairs[i] = bias.load(n + i * 64 + lane * 2);
        }

        // The lane's pair of the columns from 8 * eight on.
        __device__ __forceinline__ Pair of(int eight, int lane) const {
            Pair pair = pairs[eight / 8];
            u32 words[sizeof(Pair) / sizeof(u32)];
            memcpy(words, &pair, sizeof(Pair));
            const int source = eight % 8 * 4 + lane % 4;
            for (u32& word : words) word = __shfl_sync(kWholeWarp, word, source);
            memcpy(&pair, words, sizeof(Pair));
            return pair;
        }
    };

    template <int kRowBlocks, int kCount, typename PairOf>
    __device__ __forceinline__ static void add(
        float (&accumulators)[kRowBlocks][kCount], const PairOf& pair_of
    ) {
#pragma unroll
        for (int eight = 0; eight < kCount / 4; ++eight) {
            const Pair pair = pair_of(eight);
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
};

// Adds bias[row]; the output has this many rows. Rows beyond the last are not stored.
template <typename Element>
struct RowBias {
    const Element* bias;
    int rows;
    int last = kUnshifted;  // as in Epilogue

    template <int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        float (&accumulators)[kRowBlocks][kCount], const Tile& tile
    ) const {
#pragma unroll
        for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = shifted_row(tile.m + row_block * 64, last) +
                                accumulator_row(thread_in_warpgroup(), 2 * half);
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
// Takes tiles that are computed where they lie (kUnshifted), since shifted ones share rows.
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
    // Adds up the thread's own columns of a row: two of every eight.
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
    int last = kUnshifted;  // as in Epilogue; the addend's chunks lie where they are stored

    template <int kRowBlocks, int kCount, typename Tile>
    __device__ __forceinline__ void apply(
        float (&accumulators)[kRowBlocks][kCount], const Tile& tile
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
                const auto add = [&](int j, float low, float high) {
                    s[j] = fmaf(factor, low, s[j]);
                    s[j + 1] = fmaf(factor, high, s[j + 1]);
                };
                Chunks::Chunk::read(chunk, add, shifted_by(tile.m + i / kPerRowBlock * 64, last));
            }
            consumer.template release<Proxy::kGeneric>(consumer.index());
            consumer.step();
        }
    }
};

}  // namespace tmaasync
