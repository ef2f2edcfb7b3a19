// Half-precision functions that CUDA's <cuda_fp16.h> declares for the device only: CUDA Math API,
// "Half Precision Intrinsics". <tmaasync_emulate/bfloat16.hpp> has the bfloat16 functions.
#pragma once

#include <cuda_fp16.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <tmaasync_emulate/conversions.hpp>
#include <tmaasync_emulate/special_functions.hpp>

namespace tmaasync_emulate {

// The value nearest to a double, ties to even.
template <typename T>
T nearest(double x);
template <>
inline __half nearest(double x) {
    return __double2half(x);
}

// The value next to a float towards zero.
template <typename T>
T toward_zero(float x);
template <>
inline __half toward_zero(float x) {
    return __float2half_rz(x);
}

inline double wide(__half x) {
    return static_cast<double>(__half2float(x));
}

// a * b + c, rounded to odd, so that a second rounding makes no difference. a * b is exact.
inline double fused(double a, double b, double c) {
    const double scaled = a * b, sum = scaled + c;
    if (!std::isfinite(sum)) return sum;
    const double part = sum - scaled;
    const double rest = (scaled - (sum - part)) + (c - part);
    const auto bits = std::bit_cast<std::uint64_t>(sum);
    if (rest == 0 || (bits & 1)) return sum;
    const bool is_farther = (rest > 0) == (sum > 0);
    return std::bit_cast<double>(is_farther ? bits + 1 : bits - 1);
}

// Clamps to the range from 0 to 1; NaN becomes 0.
inline double clamped(double x) {
    return x > 0 ? (x < 1 ? x : 1) : 0;
}
// Replaces a negative number by 0, and keeps NaN.
inline double rectified(double x) {
    return x <= 0 ? 0 : x;
}

}  // namespace tmaasync_emulate

#define TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, NAME, RESULT) \
    inline T h##NAME(const T a) {                             \
        using namespace ::tmaasync_emulate;                   \
        const double x = wide(a);                             \
        return nearest<T>(RESULT);                            \
    }                                                         \
    inline PAIR h2##NAME(const PAIR a) {                      \
        return {h##NAME(a.x), h##NAME(a.y)};                  \
    }
#define TMAASYNC_EMULATE_HALF_FMA(T, PAIR, SUFFIX, RESULT)                     \
    inline T __hfma##SUFFIX(const T a, const T b, const T c) {                 \
        using namespace ::tmaasync_emulate;                                    \
        const double x = fused(wide(a), wide(b), wide(c));                     \
        return nearest<T>(RESULT);                                             \
    }                                                                          \
    inline PAIR __hfma2##SUFFIX(const PAIR a, const PAIR b, const PAIR c) {    \
        return {__hfma##SUFFIX(a.x, b.x, c.x), __hfma##SUFFIX(a.y, b.y, c.y)}; \
    }
#define TMAASYNC_EMULATE_HALF(T, PAIR)                                                           \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, trunc, std::trunc(x))                                \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, ceil, std::ceil(x))                                  \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, floor, std::floor(x))                                \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, rint, std::nearbyint(x))                             \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, sqrt, std::sqrt(x))                                  \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, rsqrt, 1 / std::sqrt(x))                             \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, rcp, 1 / x)                                          \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, log, std::log(x))                                    \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, log2, std::log2(x))                                  \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, log10, std::log10(x))                                \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, exp, std::exp(x))                                    \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, exp2, std::exp2(x))                                  \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, exp10, std::pow(10.0, x))                            \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, cos, std::cos(x))                                    \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, sin, std::sin(x))                                    \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, tanh, std::tanh(x))                                  \
    TMAASYNC_EMULATE_HALF_FUNCTION(T, PAIR, tanh_approx, wide(toward_zero<T>(special::tanh(x)))) \
    TMAASYNC_EMULATE_HALF_FMA(T, PAIR, , x)                                                      \
    TMAASYNC_EMULATE_HALF_FMA(T, PAIR, _sat, clamped(x))                                         \
    TMAASYNC_EMULATE_HALF_FMA(T, PAIR, _relu, rectified(x))                                      \
    /* Of complex numbers, x the real part. */                                                   \
    inline PAIR __hcmadd(const PAIR a, const PAIR b, const PAIR c) {                             \
        return {                                                                                 \
            __hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)),                                     \
            __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)),                                             \
        };                                                                                       \
    }

#define TMAASYNC_EMULATE_HALF_TO(NAME, TYPE, T, MODE, ROUNDING)        \
    inline TYPE NAME##_##MODE(const T a) {                             \
        return ::tmaasync_emulate::rounded_to_integer<TYPE, ROUNDING>( \
            static_cast<float>(::tmaasync_emulate::wide(a))            \
        );                                                             \
    }
#define TMAASYNC_EMULATE_HALF_TO_INTEGER(NAME, TYPE, T)       \
    TMAASYNC_EMULATE_HALF_TO(NAME, TYPE, T, rn, FE_TONEAREST) \
    TMAASYNC_EMULATE_HALF_TO(NAME, TYPE, T, ru, FE_UPWARD)    \
    TMAASYNC_EMULATE_HALF_TO(NAME, TYPE, T, rd, FE_DOWNWARD)

TMAASYNC_EMULATE_HALF(__half, __half2)
TMAASYNC_EMULATE_HALF_TO_INTEGER(__half2short, short, __half)
TMAASYNC_EMULATE_HALF_TO_INTEGER(__half2ushort, unsigned short, __half)
TMAASYNC_EMULATE_HALF_TO_INTEGER(__half2int, int, __half)
TMAASYNC_EMULATE_HALF_TO_INTEGER(__half2uint, unsigned, __half)
TMAASYNC_EMULATE_HALF_TO_INTEGER(__half2ll, long long, __half)
TMAASYNC_EMULATE_HALF_TO_INTEGER(__half2ull, unsigned long long, __half)
