// ex2, lg2, rcp, rsqrt and tanh with .approx, and approximate quotients, bit for bit as on Hopper.
#pragma once

namespace tmaasync_emulate::special {

constexpr unsigned kNan = 0x7fffffff, kInfinity = 0x7f800000, kSign = 0x80000000;
constexpr int kFraction = 23, kBias = 127;  // of a float

inline unsigned bits_of(float value) {
    return __builtin_bit_cast(unsigned, value);
}
inline float float_of(unsigned bits) {
    return __builtin_bit_cast(float, bits);
}
inline unsigned fraction_of(unsigned bits) {
    return bits & ((1u << kFraction) - 1);
}
inline int exponent_of(unsigned bits) {
    return int(bits >> kFraction & 0xff) - kBias;
}
inline bool is_nan(unsigned bits) {
    return (bits & ~kSign) > kInfinity;
}
// Whether a number is 0 where subnormal numbers are.
inline bool is_zero(unsigned bits) {
    return exponent_of(bits) == -kBias;
}

// linked_into_kernels.cpp compiles these once for all kernels, from special_function_unit.hpp.
float ex2(float x);
float lg2(float x);
float rcp(float x);
float rsqrt(float x);
float tanh(float x);

// --- PTX with .ftz, and without: there ptxas scales subnormal arguments and results --------------

template <bool kFtz>
auto ex2_approx(float x) {
    if (kFtz || !(x < -126)) return ex2(x);
    const float root = ex2(x * 0.5f);
    return root * root;
}

template <bool kFtz>
auto lg2_approx(float x) {
    return kFtz || !is_zero(bits_of(x)) ? lg2(x) : lg2(x * 0x1p24f) - 24;
}

template <bool kFtz>
auto rcp_approx(float x) {
    if constexpr (kFtz) return rcp(x);
    const float magnitude = float_of(bits_of(x) & ~kSign);
    const float scale = magnitude > 0x1p126f ? 0.25f : is_zero(bits_of(x)) ? 0x1p24f : 1;
    return rcp(x * scale) * scale;
}

// div.approx and, for all divisors, div.full: ptxas multiplies by the reciprocal.
template <bool kIsFull, bool kFtz>
auto quotient(float a, float b) {
    const auto flushed = [](float x) {
        return kFtz && is_zero(bits_of(x)) ? float_of(bits_of(x) & kSign) : x;
    };
    const float magnitude = float_of(bits_of(b) & ~kSign);
    const float scale = kIsFull && magnitude > 0x1p126f ? 0.25f
                        : !kFtz && is_zero(bits_of(b))  ? 0x1p24f
                                                        : 1;
    return flushed(rcp(b * scale) * flushed(flushed(a) * scale));
}

template <bool kFtz>
auto rsqrt_approx(float x) {
    return kFtz || !is_zero(bits_of(x)) ? rsqrt(x) : rsqrt(x * 0x1p24f) * 0x1p12f;
}

}  // namespace tmaasync_emulate::special
