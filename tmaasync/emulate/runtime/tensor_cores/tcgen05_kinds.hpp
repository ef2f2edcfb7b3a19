// The arithmetic of the kinds of tcgen05.mma, and what they share.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor_cores/tcgen05_multiply.hpp"

namespace tmaasync_emulate {

// A part of D, and its words.
struct AccumulatorWords {
    uint32_t row;
    uint32_t rows;
    uint32_t column;
    uint32_t columns;
    uint32_t* words;
    std::size_t pitch;
};

// f16, tf32, f8f6f4 and mxf8f6f4.
void multiply_floats(const Tcgen05Multiplication& mma, const AccumulatorWords& d);
// One element of these, slowly; `word` is D's.
uint32_t multiply_element(
    const Tcgen05Multiplication& mma, uint32_t row, uint32_t column, uint32_t word
);
// mxf4 and mxf4nvf4.
void multiply_groups(const Tcgen05Multiplication& mma, const AccumulatorWords& d);

// Columns that are multiplied together, and a vector of as many exponents.
constexpr uint32_t kBlockColumns = 16;
using Shorts [[gnu::vector_size(32), gnu::aligned(2), gnu::may_alias]] = int16_t;

// Vectors as they are computed with, and as they lie in memory.
template <typename Value>
using Lanes [[gnu::vector_size(32)]] = Value;
template <typename Value>
using LanesInMemory [[gnu::vector_size(32), gnu::aligned(2), gnu::may_alias]] = Value;
constexpr uint32_t kLanes = 8;  // of 32 bits; N is a multiple of it

template <typename Value>
[[gnu::always_inline]] inline auto load(const Value* from) {
    return (Lanes<Value>)*reinterpret_cast<const LanesInMemory<Value>*>(from);
}
template <typename Value, typename Vector>
[[gnu::always_inline]] inline void store(Value* to, const Vector& lanes) {
    *reinterpret_cast<LanesInMemory<Value>*>(to) = lanes;
}

constexpr uint32_t kFloatNan = 0x7fffffff;
constexpr uint32_t kHalfNan = 0x7fff;

// Rounds towards zero, beyond the greatest number to an infinity, and to no negative zero.
inline uint32_t float_towards_zero(double exact) {
    if (std::fabs(exact) >= 0x1p128) return exact < 0 ? 0xff800000 : 0x7f800000;
    float rounded = static_cast<float>(exact);
    if (std::fabs(static_cast<double>(rounded)) > std::fabs(exact)) {
        rounded = std::nextafter(rounded, 0.0f);
    }
    return rounded == 0 ? 0 : std::bit_cast<uint32_t>(rounded);
}

// Rounds to the nearest, to no negative zero.
inline uint32_t half_to_nearest(double exact) {
    const auto rounded = static_cast<_Float16>(exact);
    uint16_t bits;
    std::memcpy(&bits, &rounded, sizeof(bits));
    return (bits & 0x7fff) == 0 ? 0 : bits;
}

}  // namespace tmaasync_emulate
