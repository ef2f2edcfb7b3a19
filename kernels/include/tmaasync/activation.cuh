#pragma once

#include <tmaasync/ptx/ex2.cuh>
#include <tmaasync/ptx/rcp.cuh>

// Functions between the layers of a network, of one fp32 number each. An epilogue applies them
// while the tensor cores wait, so instructions count: ex2 and rcp flush to zero where __expf and
// __fdividef scale around that, with two to four instructions more.
namespace tmaasync {

// The host knows them by these numbers.
enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// Unlike fmaxf this hands NaN on.
__device__ __forceinline__ float relu(float x) {
    return x < 0 ? 0 : x;
}

// x times the normal distribution function of x, 0.5 x (1 + erf(x / sqrt(2))), to about 1e-6: the
// error function is Abramowitz and Stegun's 7.1.26, to 2e-7, without branches.
__device__ __forceinline__ float gelu(float x) {
    constexpr float kSqrtHalf = 0.70710678f, kLog2E = 1.44269504f;
    const float t = ptx::rcp_approx_ftz(fmaf(0.3275911f * kSqrtHalf, fabsf(x), 1));  // NaN of NaN
    float sum = 0.5f * 1.061405429f;
    sum = fmaf(sum, t, -0.5f * 1.453152027f);
    sum = fmaf(sum, t, 0.5f * 1.421413741f);
    sum = fmaf(sum, t, -0.5f * 0.284496736f);
    sum = fmaf(sum, t, 0.5f * 0.254829592f);
    // Beyond 10 the tail is 0, also where x is infinite.
    const float size = fminf(fabsf(x), 10.0f);
    const float tail = sum * t * ptx::ex2_approx_ftz(-0.5f * kLog2E * size * size);
    return fmaf(-size, tail, fmaxf(x, 0.0f));
}

// Functions of minus infinity, which is a sum below all fp32 numbers, are 0: 0 times it would not
// be a number. Each excludes it in the way with which no epilogue spills.
constexpr float kLowestFloat = -3.4028234663852886e38f;

// x / (1 + exp(-x)), to about 2^-21 of the result.
__device__ __forceinline__ float silu(float x) {
    constexpr float kLog2E = 1.44269504f;
    x = x < kLowestFloat ? kLowestFloat : x;
    return x * ptx::rcp_approx_ftz(1.0f + ptx::ex2_approx_ftz(-kLog2E * x));
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which comes within 5e-4 of gelu and costs
// less. In terms of exp: 0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u)).
__device__ __forceinline__ float gelu_tanh(float x) {
    constexpr float kFactor = -2.30220819f;  // -2 sqrt(2 / pi) log2(e)
    const float exponent = x * fmaf(kFactor * 0.044715f * x, x, kFactor);
    // The second factor is not a number where x is none.
    return fmaxf(x, kLowestFloat) * ptx::rcp_approx_ftz(1.0f + ptx::ex2_approx_ftz(exponent));
}

template <Activation kActivation>
__device__ __forceinline__ float activated(float x) {
    if constexpr (kActivation == Activation::kRelu) {
        return relu(x);
    } else if constexpr (kActivation == Activation::kGelu) {
        return gelu(x);
    } else if constexpr (kActivation == Activation::kGeluTanh) {
        return gelu_tanh(x);
    } else if constexpr (kActivation == Activation::kSilu) {
        return silu(x);
    } else {
        return x;
    }
}

}  // namespace tmaasync
