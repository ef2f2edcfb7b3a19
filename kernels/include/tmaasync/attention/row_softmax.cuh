#pragma once

#include <tmaasync/attention/softmax.cuh>
#include <tmaasync/ptx/f32x2.cuh>

namespace tmaasync {

// Online softmax of one row, whose scores a thread has whole, as it loads them from tensor memory.
// OnlineSoftmax explains the lazy rescaling, and how large bases are kept exact. It computes with
// pairs of floats in one instruction, f32x2, which chips with tensor memory have.
template <int kRescaleThreshold>
class RowSoftmax {
public:
    // scale_log2 is a normal number above 0.
    __device__ __forceinline__ explicit RowSoftmax(float scale_log2) : scale_log2_(scale_log2) {}

    // Begin a block: return the factor of the accumulators so far.
    template <int kScores>
    __device__ __forceinline__ float start_block(const float (&scores)[kScores]) {
        const float block_max = max_of(scores), new_base = __fmaf_ru(block_max, scale_log2_, 0);
        float rescale;
        update_row<kRescaleThreshold, 0, true, true>(
            scale_log2_, block_max, row_base_, new_base, row_max_, row_base_, rescale, base_,
            factor_
        );
#pragma unroll
        for (u64& sum : partial_sums_) sum = ptx::mul_f32x2(sum, pair(rescale, rescale));
        return rescale;
    }

    // The probabilities of a pair of scores, number `i` of the block; each is computed once. A
    // quarter of the exponentials runs on the FMA units (FlashAttention-4), which do 128 operations
    // in a clock where the special function unit does 16: then both take about as long. Predicted,
    // not measured.
    __device__ __forceinline__ float2 probabilities(float first, float second, int i) {
        const u64 exponents =
            ptx::fma_f32x2(pair(first, second), pair(factor_, factor_), pair(-base_, -base_));
        const u64 powers = i % 4 == 3 ? powers_by_polynomial(exponents)
                                      : pair(
                                            ptx::ex2_approx_ftz(floats(exponents).x),
                                            ptx::ex2_approx_ftz(floats(exponents).y)
                                        );
        partial_sums_[i % 2] = ptx::add_f32x2(partial_sums_[i % 2], powers);
        return floats(powers);
    }

    __device__ __forceinline__ float row_sum() const {
        const float2 both = floats(ptx::add_f32x2(partial_sums_[0], partial_sums_[1]));
        return both.x + both.y;
    }

    // The probabilities are relative to 2^scaled_max.
    __device__ __forceinline__ float scaled_max() const { return row_base_; }

private:
    __device__ __forceinline__ static u64 pair(float low, float high) {
        return __float_as_uint(low) | u64{__float_as_uint(high)} << 32;
    }
    __device__ __forceinline__ static float2 floats(u64 pair) {
        return {
            __uint_as_float(static_cast<u32>(pair)), __uint_as_float(static_cast<u32>(pair >> 32))
        };
    }

    // 2^x = 2^n 2^f with n = round(x), so that |f| is at most 1/2. The polynomial of degree 4 with
    // the least maximum of the relative error, 3e-6; with degree 5 the kernel spills (ptxas 13.5).
    __device__ __forceinline__ static u64 powers_by_polynomial(u64 exponents) {
        constexpr float kCoefficients[] = {
            9.5828185e-3f, 5.590637e-2f, 2.4024099e-1f, 6.931242e-1f, 1
        };
        constexpr float kRound = 12582912;  // 1.5 * 2^23: its sum with x has n in its last bits
        const float2 x = floats(exponents);
        const u64 bounded = pair(bound(x.x), bound(x.y)), round = pair(kRound, kRound);
        const u64 shifted = ptx::add_f32x2(bounded, round);
        const u64 whole = ptx::add_f32x2(shifted, pair(-kRound, -kRound));
        const u64 fraction = ptx::fma_f32x2(whole, pair(-1, -1), bounded);
        u64 power = pair(kCoefficients[0], kCoefficients[0]);
#pragma unroll
        for (int i = 1; i < 5; ++i) {
            power = ptx::fma_f32x2(power, fraction, pair(kCoefficients[i], kCoefficients[i]));
        }
        const float2 n = floats(shifted);
        return ptx::mul_f32x2(power, pair(power_of_2(n.x), power_of_2(n.y)));
    }

    // Exponents whose powers of 2 are 0, finite or infinite; NaN stays.
    __device__ __forceinline__ static float bound(float exponent) {
        const float above = exponent < -127 ? -127 : exponent;
        return above > 128 ? 128 : above;
    }

    // 2^n, of n in the last bits of a float.
    __device__ __forceinline__ static float power_of_2(float n) {
        return __uint_as_float((__float_as_uint(n) << 23) + 0x3f800000);
    }

    template <int kScores>
    __device__ __forceinline__ static float max_of(const float (&scores)[kScores]) {
        float chains[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
        for (int i = 4; i < kScores; ++i) chains[i % 4] = fmaxf(chains[i % 4], scores[i]);
        return fmaxf(fmaxf(chains[0], chains[1]), fmaxf(chains[2], chains[3]));
    }

    float scale_log2_;
    float row_max_ = masked_score();
    float row_base_ = masked_score();
    float base_ = 0;
    float factor_ = 0;
    u64 partial_sums_[2] = {0, 0};  // pairs of parts of row_sum
};

}  // namespace tmaasync
