#pragma once

// Functions between the layers of a network, of one fp32 number each.
namespace tmaasync {

// The host knows them by these numbers.
enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// Unlike fmaxf this hands NaN on.
__device__ __forceinline__ float relu(float x) {
    return x < 0 ? 0 : x;
}

// 1 - erf(x) of x >= 0, to 2e-7. Abramowitz and Stegun, 7.1.26; unlike erfcf it has no branches.
__device__ __forceinline__ float erfc_of_positive(float x) {
    const float t = __fdividef(1.0f, 1.0f + 0.3275911f * x);
    float sum = 1.061405429f;
    sum = sum * t - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    return sum * t * __expf(-x * x);
}

// x times the normal distribution function of x, 0.5 x (1 + erf(x / sqrt(2))), to about 1e-6.
__device__ __forceinline__ float gelu(float x) {
    constexpr float kSqrtHalf = 0.70710678f;
    // Beyond 10 the rest is 0, also where x is infinite.
    const float size = fminf(fabsf(x), 10.0f);
    return relu(x) - 0.5f * size * erfc_of_positive(size * kSqrtHalf);
}

// x / (1 + exp(-x)), to about 2^-21 of the result.
__device__ __forceinline__ float silu(float x) {
    return __fdividef(x, 1.0f + __expf(-x));
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which comes within 5e-4 of gelu and costs
// less. In terms of exp: 0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u)).
__device__ __forceinline__ float gelu_tanh(float x) {
    constexpr float kTwiceSqrtTwoOverPi = 1.59576912f;
    const float u = kTwiceSqrtTwoOverPi * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + __expf(-u));
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
