// Elements of tcgen05.mma: the value that a code stands for, and its exponent as it is encoded.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor_cores/tcgen05_instruction.hpp"

namespace tmaasync_emulate {

// An exponent is the encoded one without its bias; a subnormal number has the least exponent of a
// normal one. Sums of two operands' and two scale factors' exponents stay apart from these:
constexpr int16_t kExponentOfZero = -2000;
constexpr int16_t kExponentOfSpecial = 8000;  // of infinities and NaNs
constexpr int32_t kLeastExponent = -1000;     // sums below have a factor of zero

struct FloatElement {
    float value;
    int16_t exponent;
};

// A code with the exponent and sign of a float.
inline FloatElement float_element(uint32_t bits) {
    const int32_t field = bits >> 23 & 255;
    const int32_t exponent = (bits & 0x7fffffff) == 0 ? kExponentOfZero
                             : field == 255           ? kExponentOfSpecial
                                                      : std::max(field, 1) - 127;
    return {std::bit_cast<float>(bits), static_cast<int16_t>(exponent)};
}

inline FloatElement half_element(uint32_t bits) {
    const int32_t field = bits >> 10 & 31;
    const float finite = std::bit_cast<float>((bits & 0x7fff) << 13) * 0x1p112f;
    const uint32_t special = field == 31 ? 0x7f800000 : 0;
    const uint32_t sign = (bits & 0x8000) << 16;
    const int32_t exponent = (bits & 0x7fff) == 0 ? kExponentOfZero
                             : field == 31        ? kExponentOfSpecial
                                                  : std::max(field, 1) - 15;
    const uint32_t word = std::bit_cast<uint32_t>(finite) | special | sign;
    return {std::bit_cast<float>(word), static_cast<int16_t>(exponent)};
}

// A floating-point format of 8 bits or fewer.
struct SmallFloat {
    int32_t exponent_bits;
    int32_t mantissa_bits;
    bool has_infinity = false;
    bool has_nan = false;  // the code of all ones, without an infinity

    int32_t bias() const { return (1 << (exponent_bits - 1)) - 1; }

    FloatElement element(uint32_t code) const {
        const int32_t top = (1 << exponent_bits) - 1, ones = (1 << mantissa_bits) - 1;
        const int32_t field = code >> mantissa_bits & top;
        const int32_t mantissa = code & ones;
        const float sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1.0f : 1.0f;
        if (field == top && has_infinity) {
            return {mantissa ? NAN : sign * INFINITY, kExponentOfSpecial};
        }
        if (field == top && mantissa == ones && has_nan) return {NAN, kExponentOfSpecial};
        if (field == 0 && mantissa == 0) return {sign * 0.0f, kExponentOfZero};
        const int32_t exponent = std::max(field, 1) - bias();
        const int32_t whole = mantissa | (field ? ones + 1 : 0);
        const float value = std::ldexp(static_cast<float>(whole), exponent - mantissa_bits);
        return {sign * value, static_cast<int16_t>(exponent)};
    }
};

constexpr SmallFloat kE4M3{4, 3, false, true};
constexpr SmallFloat kE5M2{5, 2, true};
constexpr SmallFloat kE2M3{2, 3};
constexpr SmallFloat kE3M2{3, 2};
constexpr SmallFloat kE2M1{2, 1};

using SmallFloats = std::array<FloatElement, 256>;

inline SmallFloats small_floats(const SmallFloat& format) {
    const uint32_t width = 1 + format.exponent_bits + format.mantissa_bits;
    SmallFloats elements;
    for (uint32_t code = 0; code < 256; ++code) {
        elements[code] = format.element(code & ((1u << width) - 1));
    }
    return elements;
}

// All codes of a floating-point type of 8 bits or fewer.
inline const SmallFloats& small_floats(OperandType type) {
    static const SmallFloats kTables[] = {
        small_floats(kE4M3), small_floats(kE5M2), small_floats(kE2M3),
        small_floats(kE3M2), small_floats(kE2M1),
    };
    return kTables[static_cast<int>(type) - static_cast<int>(OperandType::kE4M3)];
}

// A scale factor is significand * 2^unit.
struct ScaleFactor {
    int32_t significand;
    int32_t unit;
    int32_t exponent;
    bool is_nan;
};

inline ScaleFactor e8m0_scale(uint8_t code) {
    return {1, code - 127, code - 127, code == 0xff};
}

inline ScaleFactor e4m3_scale(uint8_t code) {
    const int32_t field = code >> 3 & 15, mantissa = code & 7;
    const int32_t exponent = std::max(field, 1) - 7;
    return {mantissa | (field ? 8 : 0), exponent - 3, exponent, (code & 0x7f) == 0x7f};
}

}  // namespace tmaasync_emulate
