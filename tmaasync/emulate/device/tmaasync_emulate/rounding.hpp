// Arithmetic with its own rounding mode: CUDA Math API, "Single Precision Intrinsics" and "Double
// Precision Intrinsics". rn rounds to the nearest, ties to even; rz towards zero, ru up, rd down.
#pragma once

#include <device_types.h>

#include <cfenv>
#include <cmath>
#include <type_traits>

namespace tmaasync_emulate {

// Computes in the rounding mode of the CPU. The operands are volatile, so the CPU computes them in
// order.
template <int kRounding, typename Compute, typename... T>
__attribute__((noinline)) auto rounded(Compute compute, T... operands) {
    if constexpr (kRounding == FE_TONEAREST) {
        return compute(operands...);
    } else {
        std::fesetround(kRounding);
        const auto computed = [&](const volatile T&... kept) { return compute(T(kept)...); };
        volatile auto result = computed(operands...);
        std::fesetround(FE_TONEAREST);
        return decltype(computed(operands...))(result);
    }
}

}  // namespace tmaasync_emulate

#define TMAASYNC_EMULATE_ROUNDED_1(NAME, ROUNDING, TYPE, RESULT)                        \
    inline TYPE NAME(TYPE a) {                                                          \
        return ::tmaasync_emulate::rounded<ROUNDING>([](TYPE x) { return RESULT; }, a); \
    }
#define TMAASYNC_EMULATE_ROUNDED_2(NAME, ROUNDING, TYPE, RESULT)                                   \
    inline TYPE NAME(TYPE a, TYPE b) {                                                             \
        return ::tmaasync_emulate::rounded<ROUNDING>([](TYPE x, TYPE y) { return RESULT; }, a, b); \
    }
#define TMAASYNC_EMULATE_ROUNDED_3(NAME, ROUNDING, TYPE, RESULT)   \
    inline TYPE NAME(TYPE a, TYPE b, TYPE c) {                     \
        return ::tmaasync_emulate::rounded<ROUNDING>(              \
            [](TYPE x, TYPE y, TYPE z) { return RESULT; }, a, b, c \
        );                                                         \
    }
#define TMAASYNC_EMULATE_ROUNDED(MODE, ROUNDING)                                       \
    TMAASYNC_EMULATE_ROUNDED_2(__fadd_##MODE, ROUNDING, float, x + y)                  \
    TMAASYNC_EMULATE_ROUNDED_2(__fsub_##MODE, ROUNDING, float, x - y)                  \
    TMAASYNC_EMULATE_ROUNDED_2(__fmul_##MODE, ROUNDING, float, x* y)                   \
    TMAASYNC_EMULATE_ROUNDED_2(__fdiv_##MODE, ROUNDING, float, x / y)                  \
    TMAASYNC_EMULATE_ROUNDED_3(__fmaf_##MODE, ROUNDING, float, std::fma(x, y, z))      \
    TMAASYNC_EMULATE_ROUNDED_3(__fmaf_ieee_##MODE, ROUNDING, float, std::fma(x, y, z)) \
    TMAASYNC_EMULATE_ROUNDED_1(__frcp_##MODE, ROUNDING, float, 1.0f / x)               \
    TMAASYNC_EMULATE_ROUNDED_1(__fsqrt_##MODE, ROUNDING, float, std::sqrt(x))          \
    TMAASYNC_EMULATE_ROUNDED_2(__dadd_##MODE, ROUNDING, double, x + y)                 \
    TMAASYNC_EMULATE_ROUNDED_2(__dsub_##MODE, ROUNDING, double, x - y)                 \
    TMAASYNC_EMULATE_ROUNDED_2(__dmul_##MODE, ROUNDING, double, x* y)                  \
    TMAASYNC_EMULATE_ROUNDED_2(__ddiv_##MODE, ROUNDING, double, x / y)                 \
    TMAASYNC_EMULATE_ROUNDED_3(__fma_##MODE, ROUNDING, double, std::fma(x, y, z))      \
    TMAASYNC_EMULATE_ROUNDED_1(__drcp_##MODE, ROUNDING, double, 1.0 / x)               \
    TMAASYNC_EMULATE_ROUNDED_1(__dsqrt_##MODE, ROUNDING, double, std::sqrt(x))
TMAASYNC_EMULATE_ROUNDED(rn, FE_TONEAREST)
TMAASYNC_EMULATE_ROUNDED(rz, FE_TOWARDZERO)
TMAASYNC_EMULATE_ROUNDED(ru, FE_UPWARD)
TMAASYNC_EMULATE_ROUNDED(rd, FE_DOWNWARD)

// Calls NAME_rn, NAME_rz, NAME_ru or NAME_rd.
#define TMAASYNC_EMULATE_BY_MODE(NAME, MODE, ...)         \
    ((MODE) == cudaRoundZero     ? NAME##_rz(__VA_ARGS__) \
     : (MODE) == cudaRoundPosInf ? NAME##_ru(__VA_ARGS__) \
     : (MODE) == cudaRoundMinInf ? NAME##_rd(__VA_ARGS__) \
                                 : NAME##_rn(__VA_ARGS__))
inline double dadd(double a, double b, cudaRoundMode mode = cudaRoundNearest) {
    return TMAASYNC_EMULATE_BY_MODE(__dadd, mode, a, b);
}
inline double dsub(double a, double b, cudaRoundMode mode = cudaRoundNearest) {
    return TMAASYNC_EMULATE_BY_MODE(__dsub, mode, a, b);
}
inline double dmul(double a, double b, cudaRoundMode mode = cudaRoundNearest) {
    return TMAASYNC_EMULATE_BY_MODE(__dmul, mode, a, b);
}
inline double fma(double a, double b, double c, cudaRoundMode mode) {
    return TMAASYNC_EMULATE_BY_MODE(__fma, mode, a, b, c);
}
