#pragma once

namespace tmaasync::kernels::gemm {

// A null pointer means a scale of 1. Multiplied in double precision, because two factors may leave
// the range of fp32 where all three together do not.
__device__ inline float whole_scale(double alpha, const float* scale_a, const float* scale_b) {
    if (scale_a != nullptr) alpha *= *scale_a;
    if (scale_b != nullptr) alpha *= *scale_b;
    return static_cast<float>(alpha);
}

// The scale of a group; null without scales.
__device__ __forceinline__ const float* of_group(const float* scales, int group) {
    return scales == nullptr ? nullptr : scales + group;
}

}  // namespace tmaasync::kernels::gemm
