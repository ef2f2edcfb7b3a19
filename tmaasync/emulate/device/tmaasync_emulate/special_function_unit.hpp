// The special function unit: ex2, lg2, rcp, rsqrt and tanh with .approx, bit for bit as on Hopper.
// benchmarks/probe_special_functions.py compares all 2^32 inputs of each with a chip.
//
// A table gives a quadratic for the upper bits of the argument, and the lower bits k are put in:
// constant + linear * k + square * k^2. The unit leaves out partial products of k^2 in its lower
// columns, and rounds the result alone, towards zero. Subnormal arguments and results are 0.
// Oberman and Siu have this form ("A High-Performance Area-Efficient Multifunction Interpolator",
// 2005). Linear programs found the coefficients: the inequalities are the results of
// an H200 for all k.
#pragma once

#include <tmaasync_emulate/special_function_tables.hpp>
#include <tmaasync_emulate/special_functions.hpp>

namespace tmaasync_emulate::special {

constexpr int kFixed = 57;  // fraction bits of the fixed-point numbers below

// The square of k, which has kBits bits, without the partial products that the unit leaves out: of
// two lower bits; of the lowest upper bit with itself; of an upper and a lower bit below a column.
// The upper bits are 8.
template <int kBits>
auto truncated_square(unsigned k) {
    constexpr int kLower = kBits - 8;
    const unsigned upper = k >> kLower, lower = k & ((1u << kLower) - 1);
    unsigned sum = upper * upper >> 1;
    for (int i = 1; i < 8; ++i) sum += (upper >> i & 1) * (lower >> (kLower - i));
    return (long long)sum << (2 * kLower + 1);
}

template <int kBits>
auto interpolated(Quadratic row, unsigned k) {
    const long long line = row.constant + (long long)row.linear * k;
    return line * (1 << (kFixed - kLinearFraction)) + row.square * truncated_square<kBits>(k);
}

// The float next to fixed * 2^-fraction_bits towards zero; 0 below the normal numbers.
inline float truncated(long long fixed, int fraction_bits) {
    if (fixed == 0) return 0;
    const int top = 63 - __builtin_clzll((unsigned long long)fixed);
    const int exponent = top - fraction_bits + kBias;
    if (exponent <= 0) return 0;
    const unsigned long long scaled = top >= kFraction
                                          ? (unsigned long long)fixed >> (top - kFraction)
                                          : (unsigned long long)fixed << (kFraction - top);
    return float_of(((unsigned)exponent << kFraction) + fraction_of((unsigned)scaled));
}

float ex2(float x) {
    const unsigned bits = bits_of(x);
    if (is_nan(bits)) return float_of(kNan);
    if (x >= 128) return float_of(kInfinity);
    if (x < -126) return 0;
    const bool is_negative = bits >> 31;
    const int magnitude = (int)((is_negative ? -x : x) * (1 << kFraction));
    // The unit takes the one's complement, but of whole numbers, whose power is exact.
    const bool is_whole = (magnitude & ((1 << kFraction) - 1)) == 0;
    const int fixed = is_negative ? (is_whole ? -magnitude : ~magnitude) : magnitude;
    const unsigned fraction = fraction_of((unsigned)fixed);
    const long long power = interpolated<17>(kPowersOfTwo[fraction >> 17], fraction & 0x1ffff);
    return truncated(power, kFixed - (fixed >> kFraction));
}

float lg2(float x) {
    const unsigned bits = bits_of(x);
    if (is_zero(bits)) return -float_of(kInfinity);
    if (is_nan(bits) || bits & kSign) return float_of(kNan);
    if (bits == kInfinity) return x;
    if (x == 1) return 0;
    const int exponent = exponent_of(bits);
    const unsigned fraction = fraction_of(bits);
    const long long within = interpolated<17>(kLogarithms[fraction >> 17], fraction & 0x1ffff);
    // 38 fraction bits; of the magnitude, a one's complement, 36 are left.
    const long long sum = exponent * (1ll << 38) + (within >> (kFixed - 38));
    const long long magnitude = sum < 0 ? ~sum : sum;
    const float rounded = truncated(magnitude >> 2, 36);
    return sum < 0 ? -rounded : rounded;
}

float rcp(float x) {
    const unsigned bits = bits_of(x), sign = bits & kSign;
    if (is_nan(bits)) return float_of(kNan);
    if (is_zero(bits)) return float_of(sign | kInfinity);
    if ((bits & ~kSign) == kInfinity) return float_of(sign);
    const unsigned fraction = fraction_of(bits);
    const long long within =
        fraction == 0 ? 1ll << kFixed
                      : interpolated<16>(kReciprocals[fraction >> 16], fraction & 0xffff);
    return float_of(sign | bits_of(truncated(within, kFixed + exponent_of(bits))));
}

float rsqrt(float x) {
    const unsigned bits = bits_of(x);
    if (is_zero(bits)) return float_of((bits & kSign) | kInfinity);
    if (is_nan(bits) || bits & kSign) return float_of(kNan);
    if (bits == kInfinity) return 0;
    const int exponent = exponent_of(bits);
    const unsigned is_odd = exponent & 1, fraction = fraction_of(bits);
    const long long within =
        fraction == 0 && !is_odd
            ? 1ll << kFixed
            : interpolated<17>(
                  kReciprocalRoots[is_odd * 64 + (fraction >> 17)], fraction & 0x1ffff
              );
    return truncated(within, kFixed + (exponent - (int)is_odd) / 2);
}

float tanh(float x) {
    const unsigned bits = bits_of(x), sign = bits & kSign;
    if (is_nan(bits)) return float_of(kNan);
    const int exponent = exponent_of(bits);
    if (exponent < kTangentOrigin) return x;
    if (exponent >= kTangentOrigin + kTangentExponents) return float_of(sign | bits_of(1.0f));
    const TangentRows rows = kTangentRows[exponent - kTangentOrigin];
    const unsigned fraction = fraction_of(bits);
    const unsigned row = fraction >> (kFraction - rows.bits);
    const unsigned k = fraction >> (kFraction - rows.bits - 17) & 0x1ffff;
    const long long within = interpolated<17>(kTangents[rows.first + row], k);
    return float_of(sign | bits_of(truncated(within, kFixed)));
}

}  // namespace tmaasync_emulate::special
