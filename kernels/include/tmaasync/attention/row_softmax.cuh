#pragma once

#include <tmaasync/attention/softmax.cuh>

namespace tmaasync {

// Online softmax of one row, whose scores a thread has whole, as it loads them from tensor memory.
// OnlineSoftmax explains the lazy rescaling, and how large bases are kept exact.
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
        for (float& sum : partial_sums_) sum *= rescale;
        return rescale;
    }

    // The probability of score number `i` of the block; each is computed once.
    __device__ __forceinline__ float probability(float score, int i) {
        const float power = ptx::ex2_approx_ftz(fmaf(score, factor_, -base_));
        partial_sums_[i % 4] += power;
        return power;
    }

    __device__ __forceinline__ float row_sum() const {
        return (partial_sums_[0] + partial_sums_[1]) + (partial_sums_[2] + partial_sums_[3]);
    }

    // The probabilities are relative to 2^scaled_max.
    __device__ __forceinline__ float scaled_max() const { return row_base_; }

private:
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
    float partial_sums_[4] = {0, 0, 0, 0};  // four chains of additions
};

}  // namespace tmaasync
