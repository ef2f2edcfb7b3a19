#pragma once

// Softmax of scores that a warpgroup's threads hold as wgmma leaves them, block after block of
// columns: a running maximum, and a sum that is reduced over the threads of a row once, at the end.
#include <tmaasync/ptx/ex2.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync {

constexpr u32 kWholeWarp = 0xffffffff;

// The score of what is not seen: minus infinity.
__device__ __forceinline__ float unseen() {
    return __uint_as_float(0xff800000);
}

// Of the two rows of a thread: which columns of a block it sees, counted from the thread's first.
struct Visible {
    i32 first[2];
    i32 end[2];
};

// Each row has four threads, neighbours in a warp.
__device__ __forceinline__ float max_of_row(float value) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 1));
    return fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 2));
}

__device__ __forceinline__ float sum_of_row(float value) {
    value += __shfl_xor_sync(kWholeWarp, value, 1);
    return value + __shfl_xor_sync(kWholeWarp, value, 2);
}

// Of all lanes.
__device__ __forceinline__ float max_of_warp(float value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, lanes));
    }
    return value;
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(kWholeWarp, value, lanes);
    }
    return value;
}

template <bool kHasLeft, int kScores>
__device__ __forceinline__ void mask_scores(float (&scores)[kScores], const Visible& visible) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
        const int column = accumulator_column(0, i), half = i / 2 % 2;
        if (column >= visible.end[half]) scores[i] = unseen();
        if (kHasLeft && column < visible.first[half]) scores[i] = unseen();
    }
}

// tanh(x * scale), by the exponential: the instruction for tanh has 11 bits.
template <int kScores>
__device__ __forceinline__ void cap_scores(float (&scores)[kScores], float scale) {
    constexpr float kTwoLog2E = 2.8853900817779268f;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
        const float power = ptx::ex2_approx_ftz(scores[i] * (scale * kTwoLog2E));
        scores[i] = 1 - __fdividef(2, 1 + power);
    }
}

// The logarithm of the sum of the exponentials of scaled scores: of the weights relative to a
// score, which is given in powers of 2, that is their sum.
__device__ __forceinline__ float log_sum_exp(float relative_to, float sum) {
    constexpr float kLn2 = 0.6931471805599453f;
    return sum == 0 ? unseen() : relative_to * kLn2 + logf(sum);
}

// What sums of weighted values have to be multiplied by.
__device__ __forceinline__ float share_of(float sum) {
    return sum == 0 ? 0 : 1 / sum;
}

// Weights are relative to a maximum that may lag behind the greatest score by kSlack powers of two:
// sums are then seldom scaled. They are 2^kLift times what they would be, so that small ones are
// told apart in a type of few exponents. Together that is the greatest weight: all 16-bit types
// hold 2^8, and sums of such, and e4m3 holds 448.
template <int kSlack, int kLift>
struct SoftmaxOf {
    float scale_log2;
    float max[2] = {unseen(), unseen()};
    // Of the thread's own columns, even and odd ones apart: four chains of additions, not two.
    float sums[4] = {0, 0, 0, 0};

    // Makes weights of the scores of a block. What has been summed before is to be multiplied by
    // `rescale`. Rows of which nothing is visible yet are told apart only where there may be any.
    template <bool kMayBeEmpty, int kScores>
    __device__ __forceinline__ void weigh(float (&scores)[kScores], float (&rescale)[2]) {
        float most[2], base[2];
        find_max(scores, most);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // Never so where both are minus infinity, whose difference is not a number.
            const bool is_far = (most[half] - max[half]) * scale_log2 > kSlack;
            rescale[half] = is_far ? ptx::ex2_approx_ftz((max[half] - most[half]) * scale_log2) : 1;
            if (is_far) max[half] = most[half];
            const bool is_empty = kMayBeEmpty && max[half] == unseen();
            base[half] = is_empty ? 0 : max[half] * scale_log2 - kLift;
            sums[2 * half] *= rescale[half];
            sums[2 * half + 1] *= rescale[half];
        }
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            scores[i] = ptx::ex2_approx_ftz(scores[i] * scale_log2 - base[i / 2 % 2]);
            sums[i % 4] += scores[i];
        }
    }

    // Of each row: the sum of all weights.
    __device__ __forceinline__ float total(int half) const {
        return sum_of_row(sums[2 * half] + sums[2 * half + 1]);
    }

    // What the weights are relative to, in powers of 2.
    __device__ __forceinline__ float relative_to(int half) const {
        return max[half] * scale_log2 - kLift;
    }

private:
    // The greatest score of either row so far.
    template <int kScores>
    __device__ __forceinline__ void find_max(
        const float (&scores)[kScores], float (&most)[2]
    ) const {
        float of[4] = {max[0], scores[1], max[1], scores[3]};
#pragma unroll
        for (int i = 0; i < kScores; ++i) of[i % 4] = fmaxf(of[i % 4], scores[i]);
        most[0] = max_of_row(fmaxf(of[0], of[1]));
        most[1] = max_of_row(fmaxf(of[2], of[3]));
    }
};

// Whether there is anything to scale, in any row of the warp.
__device__ __forceinline__ bool changes(const float (&rescale)[2]) {
    return __any_sync(kWholeWarp, rescale[0] != 1 || rescale[1] != 1);
}

}  // namespace tmaasync
