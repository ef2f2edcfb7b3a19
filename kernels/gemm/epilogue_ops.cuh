#pragma once

// Operations fused into the epilogue: scale, bias and activation, on fp32 accumulators. The host
// defines
//
//   Bias          element type of the bias
//   BIAS          the number of a BiasSide
//   ACTIVATION    the number of an Activation
#include <tmaasync/activation.cuh>

#include "config.cuh"

namespace tmaasync {

// Which side of the output the bias has an element for.
enum class BiasSide { kNone, kColumns, kRows };

constexpr BiasSide kBiasSide = static_cast<BiasSide>(BIAS);

__device__ void scale_accumulators(OutputSlice& accumulators, float factor) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
        for (int i = 0; i < kOutputSliceColumns / 2; ++i) {
            accumulators[row_block][i] *= factor;
        }
    }
}

// Loads of a bias in flight, where there are registers for them.
constexpr int kEightsInFlight = 8;

struct alignas(2 * sizeof(Bias)) BiasPair {
    Bias low, high;
};

// The bias of two neighbouring columns. Columns beyond the last are not stored.
template <bool kIsInBounds>
__device__ BiasPair load_bias(const Bias* bias, int column, int columns) {
    if (kIsInBounds || column + 1 < columns) {
        return *reinterpret_cast<const BiasPair*>(bias + column);
    }
    return {column < columns ? bias[column] : Bias(0.0f), Bias(0.0f)};
}

// Adds the bias of the kFirst-th to kEnd-th eight columns; `first` is the thread's first column.
// Loads without a branch between them are in flight together.
template <bool kIsInBounds, int kFirst, int kEnd>
__device__ void add_bias_of_eights(
    OutputSlice& accumulators, const Bias* bias, int first, int columns
) {
#pragma unroll
    for (int eight = kFirst; eight < kEnd; ++eight) {
        const auto pair = load_bias<kIsInBounds>(bias, first + eight * 8, columns);
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

// Adds the bias of all columns, kEightsInFlight eights at a time.
template <int kFirst = 0>
__device__ void add_bias_in_batches(
    OutputSlice& accumulators, const Bias* bias, int n, int first, int columns
) {
    constexpr int kEights = kOutputSliceColumns / 8;
    constexpr int kEnd = kFirst + kEightsInFlight < kEights ? kFirst + kEightsInFlight : kEights;
    if (n + kEnd * 8 <= columns) {
        add_bias_of_eights<true, kFirst, kEnd>(accumulators, bias, first, columns);
    } else {
        add_bias_of_eights<false, kFirst, kEnd>(accumulators, bias, first, columns);
    }
    if constexpr (kEnd < kEights) add_bias_in_batches<kEnd>(accumulators, bias, n, first, columns);
}

// Adds a bias of every column; `n` is the first column of the tile. Accumulators of more than 64
// rows leave no registers for loads in batches, nor do three consumers, nor callers without
// kMayBatch.
template <bool kMayBatch = true>
__device__ void add_column_bias(OutputSlice& accumulators, const Bias* bias, int n, int columns) {
    const int first = n + static_cast<int>(lane_index()) % 4 * 2;
    if constexpr (kMayBatch && kRowBlocks == 1 && CONSUMERS < 3) {
        add_bias_in_batches(accumulators, bias, n, first, columns);
    } else {
        add_bias_of_eights<false, 0, kOutputSliceColumns / 8>(accumulators, bias, first, columns);
    }
}

// Adds a bias of every row; `m` is the consumer's first row. Rows beyond the last are not stored.
__device__ void add_row_bias(OutputSlice& accumulators, const Bias* bias, int m, int rows) {
#pragma unroll
    for (int row_block = 0; row_block < kRowBlocks; ++row_block) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row =
                m + row_block * kMmaRows + accumulator_row(thread_in_warpgroup(), 2 * half);
            const float value = row < rows ? static_cast<float>(bias[row]) : 0.0f;
#pragma unroll
            for (int i = 2 * half; i < kOutputSliceColumns / 2; i += 4) {
                accumulators[row_block][i] += value;
                accumulators[row_block][i + 1] += value;
            }
        }
    }
}

__device__ void activate_chunk(float* accumulators) {
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
        accumulators[i] = activated<static_cast<Activation>(ACTIVATION)>(accumulators[i]);
    }
}

}  // namespace tmaasync
