// bfloat16 functions that CUDA's <cuda_bf16.h> declares for the device only: CUDA Math API,
// "Bfloat16 Precision Intrinsics".
#pragma once

#include <cuda_bf16.h>

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <tmaasync_emulate/half.hpp>

namespace tmaasync_emulate {

template <>
inline __nv_bfloat16 nearest(double x) {
    return __double2bfloat16(x);
}
template <>
inline __nv_bfloat16 toward_zero(float x) {
    return __float2bfloat16_rz(x);
}

inline double wide(__nv_bfloat16 x) {
    return static_cast<double>(__bfloat162float(x));
}

// The whole number, cut to 24 bits. Its last bit stands for all dropped bits, so rounding the
// result to 8 bits rounds the whole number.
inline float with_sticky_bit(std::uint64_t size) {
    const int shift = 64 - std::countl_zero(size | 1) - 24;
    if (shift <= 0) return static_cast<float>(size);
    const std::uint64_t kept = size >> shift;
    const bool is_exact = kept << shift == size;
    return std::ldexp(static_cast<float>(kept | (is_exact ? 0 : 1)), shift);
}

template <typename Whole>
auto with_sticky_bit_of(Whole value) {
    const auto bits = static_cast<std::uint64_t>(value);
    return value < 0 ? -with_sticky_bit(0 - bits) : with_sticky_bit(bits);
}

}  // namespace tmaasync_emulate

TMAASYNC_EMULATE_HALF(__nv_bfloat16, __nv_bfloat162)

#define TMAASYNC_EMULATE_BFLOAT16_FROM(NAME, TYPE, MODE)                           \
    inline __nv_bfloat16 NAME##_##MODE(const TYPE a) {                             \
        return __float2bfloat16_##MODE(::tmaasync_emulate::with_sticky_bit_of(a)); \
    }
#define TMAASYNC_EMULATE_BFLOAT16_INTEGER(NAME, TYPE)                        \
    TMAASYNC_EMULATE_HALF_TO_INTEGER(__bfloat162##NAME, TYPE, __nv_bfloat16) \
    TMAASYNC_EMULATE_BFLOAT16_FROM(__##NAME##2bfloat16, TYPE, rz)            \
    TMAASYNC_EMULATE_BFLOAT16_FROM(__##NAME##2bfloat16, TYPE, ru)            \
    TMAASYNC_EMULATE_BFLOAT16_FROM(__##NAME##2bfloat16, TYPE, rd)
TMAASYNC_EMULATE_BFLOAT16_INTEGER(short, short)
TMAASYNC_EMULATE_BFLOAT16_INTEGER(ushort, unsigned short)
TMAASYNC_EMULATE_BFLOAT16_INTEGER(int, int)
TMAASYNC_EMULATE_BFLOAT16_INTEGER(uint, unsigned)
TMAASYNC_EMULATE_BFLOAT16_INTEGER(ll, long long)
TMAASYNC_EMULATE_BFLOAT16_INTEGER(ull, unsigned long long)
