#pragma once

// Online softmax of scores in a warpgroup's accumulators, block after block of keys: a running
// row_max, and a row_sum that is reduced over the threads of a row once, at the end.
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/ex2.cuh>

namespace tmaasync {

constexpr u32 kWholeWarp = 0xffffffff;
constexpr float kLargestFloat = 3.4028234663852886e38f;

// The score of a key that is masked: minus infinity.
__device__ __forceinline__ float masked_score() {
    return __uint_as_float(0xff800000);
}

// Four neighbouring lanes of a warp share a row.
__device__ __forceinline__ float max_of_row(float value) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 1));
    return fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 2));
}

__device__ __forceinline__ float sum_of_row(float value) {
    value += __shfl_xor_sync(kWholeWarp, value, 1);
    return value + __shfl_xor_sync(kWholeWarp, value, 2);
}

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

// Softcap up to its factor: tanh(score * scale), by the exponential, because the instruction for
// tanh has 11 bits. The softmax multiplies by the cap. A scale is at most a quarter of the largest
// number.
template <int kScores>
__device__ __forceinline__ void cap_scores(float (&scores)[kScores], float scale) {
    constexpr float kTwoLog2E = 2.8853900817779268f;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
        const float power = ptx::ex2_approx_ftz(scores[i] * (scale * kTwoLog2E));
        scores[i] = 1 - __fdividef(2, 1 + power);
    }
}

// The factor that normalises a row of the output.
__device__ __forceinline__ float inverse_row_sum(float row_sum) {
    return row_sum == 0 ? 0 : 1 / row_sum;
}

// A product of scales that are not negative, as a factor of scores. It is bounded, so that neither
// 0 * infinity nor infinity * 0 is computed. Not a number if it is negative.
__device__ __forceinline__ float score_factor(float product, float most) {
    constexpr float kLeast = 1.1754943508222875e-38f;  // normal
    return product >= 0 ? fminf(fmaxf(product, kLeast), most) : __uint_as_float(0x7fffffff);
}

// Online softmax (Milakov & Gimelshein 2018) with lazy rescaling (FlashAttention-4): row_max may be
// up to kRescaleThreshold powers of 2 below the greatest score, so that accumulators are seldom
// rescaled. Probabilities are relative to 2^(row_max * scale_log2 - kShift): the greatest is
// 2^(kRescaleThreshold + kShift), which P's type must hold. With kRows of 1 a thread's second row
// has no exponentials, since no query has it. It holds finite numbers, neither constants nor the
// scores as they are: for both the assembler of CUDA 13.0 serialises the MMAs
// (tests/lint/test_lint.py).
template <int kRescaleThreshold, int kShift, int kRows = 2>
struct OnlineSoftmax {
    float scale_log2;  // a normal number above 0
    float row_max[2] = {masked_score(), masked_score()};
    float base[2] = {0, 0};  // subtracted from a row's exponents of 2
    bool is_large = false;   // whether a row of the warp has large scores
    // Of the thread's own columns, even and odd ones apart: four chains of additions, not two.
    float partial_sums[4] = {0, 0, 0, 0};

    // Turns the scores S of a block into probabilities P. Returns whether the caller has to
    // multiply earlier accumulators by `rescale`, the same for the whole warp.
    template <int kScores>
    __device__ __forceinline__ bool update(float (&scores)[kScores], float (&rescale)[2]) {
        float new_max[2];
        find_max(scores, new_max);
        bool is_far[2] = {false, false};
#pragma unroll
        for (int half = 0; half < kRows; ++half) {
            // False where both are minus infinity, whose difference is not a number.
            is_far[half] = (new_max[half] - row_max[half]) * scale_log2 > kRescaleThreshold;
        }
        const bool rescales = __any_sync(kWholeWarp, is_far[0] || is_far[1]);
        if (rescales) raise_max(new_max, is_far, rescale);
        if (is_large) subtract_max(scores);
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            if (i / 2 % 2 >= kRows) {
                scores[i] *= scale_log2;
                continue;
            }
            scores[i] = ptx::ex2_approx_ftz(fmaf(scores[i], scale_log2, -base[i / 2 % 2]));
            partial_sums[i % 4] += scores[i];
        }
        return rescales;
    }

    // The sum of a row's probabilities.
    __device__ __forceinline__ float row_sum(int half) const {
        return sum_of_row(partial_sums[2 * half] + partial_sums[2 * half + 1]);
    }

    // The log-sum-exp of a row's scaled scores, and minus infinity of a row without keys alone.
    __device__ __forceinline__ static float log_sum_exp(
        float row_max, float scale_log2, float row_sum
    ) {
        constexpr float kLn2 = 0.6931471805599453f;
        constexpr int kUp = kShift < 0 ? -kShift : 0, kDown = kShift < 0 ? 0 : kShift;
        if (row_sum == 0) return masked_score();
        const float sum = row_sum * (static_cast<float>(1 << kUp) / (1 << kDown));
        const float lse = row_max * (scale_log2 * kLn2) + logf(sum);
        return lse < -kLargestFloat ? -kLargestFloat : lse;
    }

private:
    // The rounding of `base` is a factor of all probabilities of a row that changes with row_max.
    // Up to this magnitude it is less than 2^-13 from 1.
    static constexpr float kMostRounded = 4096;

    // The greatest score of each row so far.
    template <int kScores>
    __device__ __forceinline__ void find_max(
        const float (&scores)[kScores], float (&new_max)[2]
    ) const {
        float chains[4] = {row_max[0], scores[1], row_max[1], scores[3]};
#pragma unroll
        for (int i = 0; i < kScores; ++i) chains[i % 4] = fmaxf(chains[i % 4], scores[i]);
        new_max[0] = max_of_row(fmaxf(chains[0], chains[1]));
        if constexpr (kRows == 2) new_max[1] = max_of_row(fmaxf(chains[2], chains[3]));
    }

    // Raise row_max where the new one is far above it.
    __device__ __forceinline__ void raise_max(
        const float (&new_max)[2], const bool (&is_far)[2], float (&rescale)[2]
    ) {
        rescale[1] = 1;
        bool is_large_row = false;
#pragma unroll
        for (int half = 0; half < kRows; ++half) {
            const float change = (row_max[half] - new_max[half]) * scale_log2;
            rescale[half] = is_far[half] ? ptx::ex2_approx_ftz(change) : 1;
            if (is_far[half]) {
                row_max[half] = new_max[half];
                base[half] = fmaf(new_max[half], scale_log2, -kShift);
            }
            is_large_row |= fabsf(base[half]) > kMostRounded;
            partial_sums[2 * half] *= rescale[half];
            partial_sums[2 * half + 1] *= rescale[half];
        }
        is_large |= __any_sync(kWholeWarp, is_large_row);
    }

    // For large scores, subtract row_max before the scale: neither rounds nor overflows. It takes
    // an instruction more for every score, so only warps with such a row do it.
    template <int kScores>
    __device__ __forceinline__ void subtract_max(float (&scores)[kScores]) {
        float subtracted[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < kRows; ++half) {
            if (row_max[half] == masked_score()) continue;
            subtracted[half] = row_max[half];
            base[half] = -kShift;
        }
#pragma unroll
        for (int i = 0; i < kScores; ++i) scores[i] -= subtracted[i / 2 % 2];
    }
};

// Multiply the thread's two rows of accumulators, each by its own factor.
template <int kAccumulators>
__device__ __forceinline__ void scale_rows(
    float (&accumulators)[kAccumulators], const float (&factors)[2]
) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) accumulators[i] *= factors[i / 2 % 2];
}

}  // namespace tmaasync
