// Integer functions on the CPU: CUDA Math API, "Integer Intrinsics" and "Integer Mathematical
// Functions".
#pragma once

#include <vector_types.h>

#include <bit>
#include <cstdint>
#include <type_traits>

// --- bits of integers ----------------------------------------------------------------------------

inline int __popc(unsigned word) {
    return std::popcount(word);
}
inline int __popcll(unsigned long long word) {
    return std::popcount(word);
}
inline int __clz(int word) {
    return std::countl_zero(static_cast<unsigned>(word));
}
inline int __clzll(long long word) {
    return std::countl_zero(static_cast<unsigned long long>(word));
}
inline int __ffs(int word) {
    return __builtin_ffs(word);
}
inline int __ffsll(long long word) {
    return __builtin_ffsll(word);
}
inline unsigned long long __brevll(unsigned long long word) {
    unsigned long long reversed = 0;
    for (int bit = 0; bit < 64; ++bit) reversed |= (word >> bit & 1) << (63 - bit);
    return reversed;
}
inline unsigned __brev(unsigned word) {
    return static_cast<unsigned>(__brevll(word) >> 32);
}
// Selects four of the eight bytes of two words, by the low three bits of each digit of the
// selector.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    unsigned word = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = selector >> 4 * i;
        word |= static_cast<unsigned>(both >> (digit & 7) * 8 & 0xff) << 8 * i;
    }
    return word;
}
// PTX ISA, fns: the position of the nth set bit, from `base` up, or down if n is negative. For n =
// 0 it is `base` itself.
inline unsigned __fns(unsigned word, unsigned base, int nth) {
    const int step = nth < 0 ? -1 : 1;
    unsigned left = nth < 0 ? 0u - static_cast<unsigned>(nth) : static_cast<unsigned>(nth);
    if (left == 0) return base < 32 && word >> base & 1 ? base : ~0u;
    for (auto place = static_cast<std::int64_t>(base); place >= 0 && place < 32; place += step) {
        if ((word >> place & 1) && --left == 0) return static_cast<unsigned>(place);
    }
    return ~0u;
}
// The shifts take 5 bits of the count. Functions with the suffix c clamp the count to 32.
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift < 32 ? __funnelshift_l(low, high, shift) : low;
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift < 32 ? __funnelshift_r(low, high, shift) : high;
}

// --- arithmetic of integers ----------------------------------------------------------------------

inline int __mulhi(int a, int b) {
    return static_cast<int>(static_cast<long long>(a) * b >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline long long __mul64hi(long long a, long long b) {
    return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __mul24(int a, int b) {
    const auto low = [](int word) {
        return static_cast<int>(static_cast<unsigned>(word) << 8) >> 8;
    };
    return static_cast<int>(static_cast<long long>(low(a)) * low(b));
}
inline unsigned __umul24(unsigned a, unsigned b) {
    return (a & 0xffffff) * (b & 0xffffff);
}
inline unsigned __sad(int a, int b, unsigned sum) {
    const auto first = static_cast<unsigned>(a), second = static_cast<unsigned>(b);
    return (a > b ? first - second : second - first) + sum;
}
inline unsigned __usad(unsigned a, unsigned b, unsigned sum) {
    return (a > b ? a - b : b - a) + sum;
}
inline int __hadd(int a, int b) {
    return static_cast<int>(static_cast<long long>(a) + b >> 1);
}
inline int __rhadd(int a, int b) {
    return static_cast<int>(static_cast<long long>(a) + b + 1 >> 1);
}
inline unsigned __uhadd(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) + b >> 1);
}
inline unsigned __urhadd(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) + b + 1 >> 1);
}

namespace tmaasync_emulate {

// The dot product of four bytes of types A and B, added to a word that wraps.
template <typename A, typename B>
auto dot_of_bytes(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 4; ++i) {
        sum += static_cast<unsigned>(static_cast<A>(a >> 8 * i) * static_cast<B>(b >> 8 * i));
    }
    return sum;
}

// The dot product of the two halves of a and two bytes of b, added to a word that wraps.
template <typename A, typename B>
auto dot_of_halves(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 2; ++i) {
        sum += static_cast<unsigned>(static_cast<A>(a >> 16 * i) * static_cast<B>(b >> 8 * i));
    }
    return sum;
}

}  // namespace tmaasync_emulate

inline int __dp4a(int a, int b, int sum) {
    return static_cast<int>(tmaasync_emulate::dot_of_bytes<int8_t, int8_t>(
        static_cast<unsigned>(a), static_cast<unsigned>(b), static_cast<unsigned>(sum)
    ));
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    return tmaasync_emulate::dot_of_bytes<uint8_t, uint8_t>(a, b, sum);
}
inline int __dp2a_lo(int a, int b, int sum) {
    return static_cast<int>(tmaasync_emulate::dot_of_halves<int16_t, int8_t>(
        static_cast<unsigned>(a), static_cast<unsigned>(b), static_cast<unsigned>(sum)
    ));
}
inline int __dp2a_hi(int a, int b, int sum) {
    return __dp2a_lo(a, b >> 16, sum);
}
inline unsigned __dp2a_lo(unsigned a, unsigned b, unsigned sum) {
    return tmaasync_emulate::dot_of_halves<uint16_t, uint8_t>(a, b, sum);
}
inline unsigned __dp2a_hi(unsigned a, unsigned b, unsigned sum) {
    return __dp2a_lo(a, b >> 16, sum);
}
inline int __dp4a(char4 a, char4 b, int sum) {
    return __dp4a(std::bit_cast<int>(a), std::bit_cast<int>(b), sum);
}
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned sum) {
    return __dp4a(std::bit_cast<unsigned>(a), std::bit_cast<unsigned>(b), sum);
}
inline int __dp2a_lo(short2 a, char4 b, int sum) {
    return __dp2a_lo(std::bit_cast<int>(a), std::bit_cast<int>(b), sum);
}
inline int __dp2a_hi(short2 a, char4 b, int sum) {
    return __dp2a_hi(std::bit_cast<int>(a), std::bit_cast<int>(b), sum);
}
inline unsigned __dp2a_lo(ushort2 a, uchar4 b, unsigned sum) {
    return __dp2a_lo(std::bit_cast<unsigned>(a), std::bit_cast<unsigned>(b), sum);
}
inline unsigned __dp2a_hi(ushort2 a, uchar4 b, unsigned sum) {
    return __dp2a_hi(std::bit_cast<unsigned>(a), std::bit_cast<unsigned>(b), sum);
}

// --- the smaller and the larger ------------------------------------------------------------------

// These are CUDA's overloads, and not templates: NVRTC too finds a call with other types ambiguous,
// and overloads win over a header's own templates. For a NaN and a number they return the number.
#define TMAASYNC_EMULATE_MIN_MAX(A, B)                             \
    constexpr std::common_type_t<A, B> min(const A a, const B b) { \
        using Common = std::common_type_t<A, B>;                   \
        return Common(b) < Common(a) ? Common(b) : Common(a);      \
    }                                                              \
    constexpr std::common_type_t<A, B> max(const A a, const B b) { \
        using Common = std::common_type_t<A, B>;                   \
        return Common(a) < Common(b) ? Common(b) : Common(a);      \
    }
#define TMAASYNC_EMULATE_MIN_MAX_OF_SIZE(SIGNED, UNSIGNED) \
    TMAASYNC_EMULATE_MIN_MAX(SIGNED, SIGNED)               \
    TMAASYNC_EMULATE_MIN_MAX(UNSIGNED, UNSIGNED)           \
    TMAASYNC_EMULATE_MIN_MAX(SIGNED, UNSIGNED)             \
    TMAASYNC_EMULATE_MIN_MAX(UNSIGNED, SIGNED)
TMAASYNC_EMULATE_MIN_MAX_OF_SIZE(int, unsigned)
TMAASYNC_EMULATE_MIN_MAX_OF_SIZE(long, unsigned long)
TMAASYNC_EMULATE_MIN_MAX_OF_SIZE(long long, unsigned long long)
#undef TMAASYNC_EMULATE_MIN_MAX_OF_SIZE
#undef TMAASYNC_EMULATE_MIN_MAX

#define TMAASYNC_EMULATE_MIN_MAX(A, B)                          \
    inline std::common_type_t<A, B> min(const A a, const B b) { \
        return std::fmin(a, b);                                 \
    }                                                           \
    inline std::common_type_t<A, B> max(const A a, const B b) { \
        return std::fmax(a, b);                                 \
    }
TMAASYNC_EMULATE_MIN_MAX(float, float)
TMAASYNC_EMULATE_MIN_MAX(double, double)
TMAASYNC_EMULATE_MIN_MAX(float, double)
TMAASYNC_EMULATE_MIN_MAX(double, float)
#undef TMAASYNC_EMULATE_MIN_MAX

#define TMAASYNC_EMULATE_MIN_MAX(TYPE, PREFIX) \
    inline TYPE PREFIX##min(TYPE a, TYPE b) {  \
        return b < a ? b : a;                  \
    }                                          \
    inline TYPE PREFIX##max(TYPE a, TYPE b) {  \
        return a < b ? b : a;                  \
    }
TMAASYNC_EMULATE_MIN_MAX(unsigned, u)
TMAASYNC_EMULATE_MIN_MAX(long long, ll)
TMAASYNC_EMULATE_MIN_MAX(unsigned long long, ull)
#undef TMAASYNC_EMULATE_MIN_MAX
