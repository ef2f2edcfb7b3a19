// Conversions between number types: CUDA Math API, "Type Casting Intrinsics".
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <tmaasync_emulate/rounding.hpp>
#include <type_traits>

// --- the same bits as another type ---------------------------------------------------------------

inline float __int_as_float(int word) {
    return std::bit_cast<float>(word);
}
inline int __float_as_int(float value) {
    return std::bit_cast<int>(value);
}
inline float __uint_as_float(unsigned word) {
    return std::bit_cast<float>(word);
}
inline unsigned __float_as_uint(float value) {
    return std::bit_cast<unsigned>(value);
}
inline long long __double_as_longlong(double value) {
    return std::bit_cast<long long>(value);
}
inline double __longlong_as_double(long long word) {
    return std::bit_cast<double>(word);
}
inline int __double2hiint(double value) {
    return static_cast<int>(__double_as_longlong(value) >> 32);
}
inline int __double2loint(double value) {
    return static_cast<int>(__double_as_longlong(value));
}
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double(
        static_cast<long long>(
            static_cast<unsigned long long>(high) << 32 | static_cast<unsigned>(low)
        )
    );
}

// --- rounding ------------------------------------------------------------------------------------

namespace tmaasync_emulate {

// PTX ISA, cvt: a value too large becomes the largest one. NaN becomes 0, or the highest bit if
// either type has 64 bits.
template <typename To, typename From>
auto saturated(From whole) {
    constexpr bool kIsWide = sizeof(To) == 8 || sizeof(From) == 8;
    if (whole != whole) return kIsWide ? static_cast<To>(To{1} << (8 * sizeof(To) - 1)) : To{0};
    // The first power of two that is too large.
    const From end = std::ldexp(From{1}, std::numeric_limits<To>::digits);
    if (whole >= end) return std::numeric_limits<To>::max();
    const From low = std::is_signed_v<To> ? -end : From{0};
    return whole <= low ? std::numeric_limits<To>::min() : static_cast<To>(whole);
}

template <typename To, int kRounding, typename From>
auto rounded_to_integer(From value) {
    return saturated<To>(rounded<kRounding>([](From x) { return std::nearbyint(x); }, value));
}

}  // namespace tmaasync_emulate

#define TMAASYNC_EMULATE_CONVERT(MODE, ROUNDING, NAME, TYPE)                               \
    inline float __##NAME##2float_##MODE(TYPE a) {                                         \
        return ::tmaasync_emulate::rounded<ROUNDING>([](TYPE x) { return float(x); }, a);  \
    }                                                                                      \
    inline double __##NAME##2double_##MODE(TYPE a) {                                       \
        return ::tmaasync_emulate::rounded<ROUNDING>([](TYPE x) { return double(x); }, a); \
    }                                                                                      \
    inline TYPE __float2##NAME##_##MODE(float a) {                                         \
        return ::tmaasync_emulate::rounded_to_integer<TYPE, ROUNDING>(a);                  \
    }                                                                                      \
    inline TYPE __double2##NAME##_##MODE(double a) {                                       \
        return ::tmaasync_emulate::rounded_to_integer<TYPE, ROUNDING>(a);                  \
    }
#define TMAASYNC_EMULATE_CONVERSIONS(MODE, ROUNDING)                                        \
    TMAASYNC_EMULATE_CONVERT(MODE, ROUNDING, int, int)                                      \
    TMAASYNC_EMULATE_CONVERT(MODE, ROUNDING, uint, unsigned)                                \
    TMAASYNC_EMULATE_CONVERT(MODE, ROUNDING, ll, long long)                                 \
    TMAASYNC_EMULATE_CONVERT(MODE, ROUNDING, ull, unsigned long long)                       \
    inline float __double2float_##MODE(double a) {                                          \
        return ::tmaasync_emulate::rounded<ROUNDING>([](double x) { return float(x); }, a); \
    }
TMAASYNC_EMULATE_CONVERSIONS(rn, FE_TONEAREST)
TMAASYNC_EMULATE_CONVERSIONS(rz, FE_TOWARDZERO)
TMAASYNC_EMULATE_CONVERSIONS(ru, FE_UPWARD)
TMAASYNC_EMULATE_CONVERSIONS(rd, FE_DOWNWARD)

// Functions that take the mode as an argument.
#define TMAASYNC_EMULATE_CONVERT_BY_MODE(NAME, TYPE)                             \
    inline TYPE double2##NAME(double a, cudaRoundMode mode = cudaRoundZero) {    \
        return TMAASYNC_EMULATE_BY_MODE(__double2##NAME, mode, a);               \
    }                                                                            \
    inline double NAME##2double(TYPE a, cudaRoundMode mode = cudaRoundNearest) { \
        return TMAASYNC_EMULATE_BY_MODE(__##NAME##2double, mode, a);             \
    }
TMAASYNC_EMULATE_CONVERT_BY_MODE(int, int)
TMAASYNC_EMULATE_CONVERT_BY_MODE(uint, unsigned)
TMAASYNC_EMULATE_CONVERT_BY_MODE(ll, long long)
TMAASYNC_EMULATE_CONVERT_BY_MODE(ull, unsigned long long)
inline double float2double(float a, cudaRoundMode = cudaRoundNearest) {
    return a;
}
