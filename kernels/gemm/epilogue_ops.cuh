#pragma once

// What becomes of a tile's sums before they are rounded. The host defines
//
//   Bias          element type of the bias
//   BIAS          the number of a BiasSide
//   ACTIVATION    the number of an Activation
#include <tmaasync/activation.cuh>

#include "config.cuh"

namespace tmaasync {

// Where the bias runs: over the columns of the product, or over its rows.
enum class BiasSide { kNone, kColumns, kRows };

constexpr BiasSide kBiasSide = static_cast<BiasSide>(BIAS);

__device__ void scale_sums(Share& sums, float factor) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kShareColumns / 2; ++i) {
            sums[part][i] *= factor;
        }
    }
}

// Loads of a bias that are under way at once, where there are registers for them.
constexpr int kEightsAtOnce = 8;

struct alignas(2 * sizeof(Bias)) BiasPair {
    Bias low, high;
};

// The bias of two neighbouring columns; what is beyond the last column is not stored.
template <bool kAreAllThere>
__device__ BiasPair bias_of(const Bias* bias, int column, int columns) {
    if (kAreAllThere || column + 1 < columns) {
        return *reinterpret_cast<const BiasPair*>(bias + column);
    }
    return {column < columns ? bias[column] : Bias(0.0f), Bias(0.0f)};
}

// Of columns, in eights, from the thread's first on. Loads that no branch parts are under way at
// once.
template <bool kAreAllThere, int kFirst, int kEnd>
__device__ void add_bias_of_eights(Share& sums, const Bias* bias, int first, int columns) {
#pragma unroll
    for (int eight = kFirst; eight < kEnd; ++eight) {
        const auto more = bias_of<kAreAllThere>(bias, first + eight * 8, columns);
        const auto low = static_cast<float>(more.low), high = static_cast<float>(more.high);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            float* s = sums[part] + eight * 4;
            s[0] += low;
            s[1] += high;
            s[2] += low;
            s[3] += high;
        }
    }
}

// The same, so many eights at a time as there are registers for.
template <int kFirst = 0>
__device__ void add_bias_in_bunches(Share& sums, const Bias* bias, int n, int first, int columns) {
    constexpr int kEights = kShareColumns / 8;
    constexpr int kEnd = kFirst + kEightsAtOnce < kEights ? kFirst + kEightsAtOnce : kEights;
    if (n + kEnd * 8 <= columns) {
        add_bias_of_eights<true, kFirst, kEnd>(sums, bias, first, columns);
    } else {
        add_bias_of_eights<false, kFirst, kEnd>(sums, bias, first, columns);
    }
    if constexpr (kEnd < kEights) add_bias_in_bunches<kEnd>(sums, bias, n, first, columns);
}

// `n` is the first column of the tile. Sums of more than 64 rows leave no registers for bunches,
// nor do three consumers, nor what the caller knows of.
template <bool kMayBunch = true>
__device__ void add_bias(Share& sums, const Bias* bias, int n, int columns) {
    const int first = n + static_cast<int>(lane_index()) % 4 * 2;
    if constexpr (kMayBunch && kParts == 1 && CONSUMERS < 3) {
        add_bias_in_bunches(sums, bias, n, first, columns);
    } else {
        add_bias_of_eights<false, 0, kShareColumns / 8>(sums, bias, first, columns);
    }
}

// `m` is the first row of the group's sums; what is beyond the last row is not stored.
__device__ void add_bias_of_rows(Share& sums, const Bias* bias, int m, int rows) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row =
                m + part * kInstructionRows + accumulator_row(thread_in_warpgroup(), 2 * half);
            const float more = row < rows ? static_cast<float>(bias[row]) : 0.0f;
#pragma unroll
            for (int i = 2 * half; i < kShareColumns / 2; i += 4) {
                sums[part][i] += more;
                sums[part][i + 1] += more;
            }
        }
    }
}

__device__ void activate_chunk(float* sums) {
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
        sums[i] = activated<static_cast<Activation>(ACTIVATION)>(sums[i]);
    }
}

}  // namespace tmaasync
