#pragma once

// What becomes of a tile's sums before they are rounded. A kernel includes this behind product.cuh;
// its host defines
//
//   Bias          element type of the bias
//   BIAS          the number of a BiasSide
//   ACTIVATION    the number of an Activation
#include <tmaasync/activation.cuh>

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

// The bias of two neighbouring columns; what is beyond the last column is not stored.
__device__ float2 bias_of(const Bias* bias, int column, int columns) {
    struct alignas(2 * sizeof(Bias)) Pair {
        Bias low, high;
    };
    if (column + 1 < columns) {
        const Pair pair = *reinterpret_cast<const Pair*>(bias + column);
        return {static_cast<float>(pair.low), static_cast<float>(pair.high)};
    }
    return {column < columns ? static_cast<float>(bias[column]) : 0.0f, 0.0f};
}

// `n` is the first column of the tile.
__device__ void add_bias(Share& sums, const Bias* bias, int n, int columns) {
    const int first = n + static_cast<int>(lane_index()) % 4 * 2;
#pragma unroll
    for (int eight = 0; eight < kShareColumns / 8; ++eight) {
        const float2 more = bias_of(bias, first + eight * 8, columns);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            float* s = sums[part] + eight * 4;
            s[0] += more.x;
            s[1] += more.y;
            s[2] += more.x;
            s[3] += more.y;
        }
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
