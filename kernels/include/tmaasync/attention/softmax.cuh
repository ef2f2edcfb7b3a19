#pragma once

// Online softmax of scores in a warpgroup's accumulators, block after block of keys: a running
// row_max, and a row_sum that is reduced over the threads of a row once, at the end.
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/ex2.cuh>
#include <tmaasync/warp_reductions.cuh>

namespace tmaasync {

constexpr float kLargestFloat = 3.4028234663852886e38f;

// The score of a key that is masked: minus infinity.
__device__ __forceinline__ float masked_score() {
    return __uint_as_float(0xff800000);
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

// The log-sum-exp of a row's scaled scores; minus infinity only for a row without keys.
// Probabilities in row_sum are relative to 2^scaled_max.
__device__ __forceinline__ float log_sum_exp(float scaled_max, float row_sum) {
    constexpr float kLn2 = 0.6931471805599453f;
    if (row_sum == 0) return masked_score();
    const float lse = (scaled_max + __log2f(row_sum)) * kLn2;
    return lse < -kLargestFloat ? -kLargestFloat : lse;
}

// The factor that normalises a row of the output.
__device__ __forceinline__ float inverse_row_sum(float row_sum) {
    return row_sum == 0 ? 0 : 1 / row_sum;
}

// A factor of scores, from scales multiplied in fp32. It is bounded, so that infinity is never
// multiplied by 0. Not a number if it is negative.
__device__ __forceinline__ float score_factor(float factor, float most) {
    constexpr float kLeast = 1.1754943508222875e-38f;  // normal
    return factor >= 0 ? fminf(fmaxf(factor, kLeast), most) : __uint_as_float(0x7fffffff);
}

// The greatest power of 2 that is not above a normal number.
__device__ __forceinline__ float power_of_2_below(float value) {
    return __uint_as_float(__float_as_uint(value) & 0x7f800000);
}

// Update a row's maximum and its base, which was old_base, by the greatest score of a block, whose
// probabilities are 2^(score * factor - base). Earlier accumulators are multiplied by `rescale`.
// OnlineSoftmax explains the parameters.
template <int kRescaleThreshold, int kShift, bool kMayBeLarge, bool kMayBeEmpty>
__device__ __forceinline__ void update_row(
    float scale_log2,
    float block_max,
    float old_base,
    float new_base,
    float& row_max,
    float& row_base,
    float& rescale,
    float& base,
    float& factor
) {
    // False where both are minus infinity, whose difference is not a number.
    const bool is_far = new_base - old_base > kRescaleThreshold;
    rescale = is_far ? ptx::ex2_approx_ftz(old_base - new_base) : 1;
    if (is_far) {
        row_max = block_max;
        row_base = new_base;
    }
    base = is_far ? new_base : old_base;
    factor = scale_log2;
    if (kMayBeLarge && fabsf(base) > 1 << 24) {
        factor = power_of_2_below(scale_log2);
        base = fmaf(row_max, factor, -kShift);
    }
    if (kMayBeEmpty && base == masked_score()) base = 0;
}

// Online softmax (Milakov & Gimelshein 2018) with lazy rescaling (FlashAttention-4): row_max may be
// up to kRescaleThreshold powers of 2 below the greatest score, so that accumulators are seldom
// rescaled. Probabilities are scaled by 2^kShift, so that small ones stay distinct in a type of few
// exponents. The greatest is 2^(kRescaleThreshold + kShift), which P's type must hold: e4m3 holds
// 448. With kRows of 1 a thread's second row has no exponentials, since no query has it. It holds
// finite numbers, neither constants nor the scores as they are: for both the assembler of CUDA 13.0
// serialises the MMAs (tests/lint/test_lint.py).
//
// fp32 rounds a row's base, row_max * scale_log2 - kShift, upwards. All exponentials of the row
// subtract the same rounded number, and rescaling does too, so that the rounding cancels, unless it
// makes the exponentials too small for P's type. kMayBeLarge: where the base exceeds 2^24, scores
// are multiplied by a power of 2 that is more than half of the scale, and the base is exact. There,
// fp32 scores that differ do so by an exponent of 1 or more. Without it, a row whose base exceeds
// 2^26 has a row_sum that is not a number. kKeepsBase: the base stays in two registers, instead of
// being computed from row_max again for each block.
//
// A type of few bits may lose probabilities that count in an exact sum of all: the output is
// divided by the sum of the probabilities as they are multiplied, which the caller adds up. The
// exact sum then serves the log-sum-exp and the merging of partial outputs alone.
enum class ProbabilitySums { kExact, kRounded, kBoth };

template <
    int kRescaleThreshold,
    int kShift,
    int kRows = 2,
    bool kMayBeLarge = true,
    bool kKeepsBase = true,
    ProbabilitySums kSums = ProbabilitySums::kExact>
struct OnlineSoftmax {
    float scale_log2;  // a normal number above 0
    float row_max[2] = {masked_score(), masked_score()};
    float row_base[2] = {masked_score(), masked_score()};  // base_of(row_max)
    // Parts of row_sum, by the thread's even and odd columns: four chains of additions, not two.
    float partial_sums[4] = {0, 0, 0, 0};
    float rounded_row_sum[2] = {0, 0};

    // Turns the scores S of a block into probabilities P. The caller multiplies earlier
    // accumulators by `rescale`. kMayBeEmpty: rows may have seen no key yet.
    template <bool kMayBeEmpty, int kScores>
    __device__ __forceinline__ void update(float (&scores)[kScores], float (&rescale)[2]) {
        float block_max[2], base[2], factor[2];
        find_max(scores, block_max);
        rescale[1] = 1;
#pragma unroll
        for (int half = 0; half < kRows; ++half) {
            const float old_base = scaled_max(half), new_base = base_of(block_max[half]);
            update_row<kRescaleThreshold, kShift, kMayBeLarge, kMayBeEmpty>(
                scale_log2, block_max[half], old_base, new_base, row_max[half], row_base[half],
                rescale[half], base[half], factor[half]
            );
            partial_sums[2 * half] *= rescale[half];
            partial_sums[2 * half + 1] *= rescale[half];
            rounded_row_sum[half] *= rescale[half];
        }
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            const int half = i / 2 % 2;
            if (half >= kRows) {
                scores[i] *= scale_log2;
                continue;
            }
            scores[i] = ptx::ex2_approx_ftz(fmaf(scores[i], factor[half], -base[half]));
            if constexpr (kSums != ProbabilitySums::kRounded) partial_sums[i % 4] += scores[i];
        }
    }

    // Add the rounded probabilities of a block, each row of the thread added up, before the
    // update() of the next block.
    __device__ __forceinline__ void add_rounded(float first, float second) {
        rounded_row_sum[0] += first;
        if constexpr (kRows == 2) rounded_row_sum[1] += second;
    }

    // The sum of a row's probabilities; rounded ones if there is no exact sum.
    __device__ __forceinline__ float row_sum(int half) const {
        if constexpr (kSums == ProbabilitySums::kRounded)
            return unless_lost(half, rounded_row_sum[half]);
        const float own = partial_sums[2 * half] + partial_sums[2 * half + 1];
        return unless_lost(half, sum_of_row(own));
    }

    // The sum that normalises the output: of the probabilities as they are multiplied.
    __device__ __forceinline__ float multiplied_sum(int half) const {
        if constexpr (kSums == ProbabilitySums::kExact) return row_sum(half);
        return unless_lost(half, rounded_row_sum[half]);
    }

    // A row's probabilities are relative to 2^scaled_max.
    __device__ __forceinline__ float scaled_max(int half) const {
        return kKeepsBase ? row_base[half] : base_of(row_max[half]);
    }

private:
    __device__ __forceinline__ float base_of(float max) const {
        return __fmaf_ru(max, scale_log2, -kShift);
    }

    __device__ __forceinline__ float unless_lost(int half, float sum) const {
        const bool is_lost = !kMayBeLarge && fabsf(scaled_max(half)) > 1 << 26;
        return is_lost && scaled_max(half) != masked_score() ? __uint_as_float(0x7fffffff) : sum;
    }

    // The greatest score of each row of a block.
    template <int kScores>
    __device__ __forceinline__ static void find_max(
        const float (&scores)[kScores], float (&block_max)[2]
    ) {
        float chains[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
        for (int i = 4; i < kScores; ++i) chains[i % 4] = fmaxf(chains[i % 4], scores[i]);
        block_max[0] = max_of_row(fmaxf(chains[0], chains[1]));
        if constexpr (kRows == 2) block_max[1] = max_of_row(fmaxf(chains[2], chains[3]));
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

// Whether any row of the warp has to be rescaled.
__device__ __forceinline__ bool any_rescale(const float (&rescale)[2]) {
    return __any_sync(kWholeWarp, rescale[0] != 1 || rescale[1] != 1);
}

}  // namespace tmaasync
