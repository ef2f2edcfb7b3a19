// CUDA's intrinsic functions on the CPU: bits, rounding, conversions, fast mathematics, cached
// loads. Warp functions, barriers and atomics are in cuda.hpp.
#pragma once

#include <vector_types.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tmaasync_emulate/calls.hpp>
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
// Four of the eight bytes of two words, by the low three bits of each digit of the selector; the
// fourth asks for the byte's sign.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    unsigned word = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = selector >> 4 * i;
        word |= static_cast<unsigned>(both >> (digit & 7) * 8 & 0xff) << 8 * i;
    }
    return word;
}
// The shifts take 5 bits of the count; those with c take 32 for all above.
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
unsigned dot_of_bytes(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 4; ++i) {
        sum += static_cast<unsigned>(static_cast<A>(a >> 8 * i) * static_cast<B>(b >> 8 * i));
    }
    return sum;
}

// The same of the two halves of a, and two bytes of b.
template <typename A, typename B>
unsigned dot_of_halves(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 2; ++i) {
        sum += static_cast<unsigned>(static_cast<A>(a >> 16 * i) * static_cast<B>(b >> 8 * i));
    }
    return sum;
}

template <typename Part, typename Change>
unsigned each_part(unsigned a, unsigned b, Change change) {
    constexpr int kBits = 8 * sizeof(Part);
    unsigned word = 0;
    for (int shift = 0; shift < 32; shift += kBits) {
        const auto part = change(static_cast<Part>(a >> shift), static_cast<Part>(b >> shift));
        word |= static_cast<unsigned>(static_cast<std::make_unsigned_t<Part>>(part)) << shift;
    }
    return word;
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

// The parts of a word, 4 bytes or 2 halves, each for itself: u is unsigned, s signed.
#define TMAASYNC_EMULATE_EACH_PART(NAME, PART, RESULT)                                         \
    inline unsigned NAME(unsigned a, unsigned b) {                                             \
        return tmaasync_emulate::each_part<PART>(a, b, [](auto x, auto y) { return RESULT; }); \
    }
#define TMAASYNC_EMULATE_EACH(NUMBER, SIGNED, UNSIGNED)                                        \
    TMAASYNC_EMULATE_EACH_PART(__vadd##NUMBER, UNSIGNED, UNSIGNED(x + y))                      \
    TMAASYNC_EMULATE_EACH_PART(__vsub##NUMBER, UNSIGNED, UNSIGNED(x - y))                      \
    TMAASYNC_EMULATE_EACH_PART(__vmaxu##NUMBER, UNSIGNED, x < y ? y : x)                       \
    TMAASYNC_EMULATE_EACH_PART(__vminu##NUMBER, UNSIGNED, y < x ? y : x)                       \
    TMAASYNC_EMULATE_EACH_PART(__vmaxs##NUMBER, SIGNED, x < y ? y : x)                         \
    TMAASYNC_EMULATE_EACH_PART(__vmins##NUMBER, SIGNED, y < x ? y : x)                         \
    TMAASYNC_EMULATE_EACH_PART(__vabsdiffu##NUMBER, UNSIGNED, UNSIGNED(x < y ? y - x : x - y)) \
    TMAASYNC_EMULATE_EACH_PART(__vavgu##NUMBER, UNSIGNED, UNSIGNED(x + y + 1 >> 1))            \
    TMAASYNC_EMULATE_EACH_PART(__vcmpeq##NUMBER, UNSIGNED, UNSIGNED(x == y ? -1 : 0))          \
    TMAASYNC_EMULATE_EACH_PART(__vcmpgtu##NUMBER, UNSIGNED, UNSIGNED(x > y ? -1 : 0))          \
    TMAASYNC_EMULATE_EACH_PART(__vcmpgts##NUMBER, SIGNED, SIGNED(x > y ? -1 : 0))
TMAASYNC_EMULATE_EACH(2, int16_t, uint16_t)
TMAASYNC_EMULATE_EACH(4, int8_t, uint8_t)

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

// In the rounding mode of the CPU, which computes the operands as volatile ones demand: in order.
template <int kRounding, typename Compute, typename... T>
__attribute__((noinline)) auto rounded(Compute compute, T... operands) {
    const int before = std::fegetround();
    std::fesetround(kRounding);
    const auto computed = [&](const volatile T&... kept) { return compute(T(kept)...); };
    volatile auto result = computed(operands...);
    std::fesetround(before);
    return decltype(computed(operands...))(result);
}

// PTX ISA, cvt: a value too large becomes the largest, and NaN 0, or with 64 bits on either side
// the highest bit.
template <typename To, typename From>
To saturated(From whole) {
    constexpr bool kIsWide = sizeof(To) == 8 || sizeof(From) == 8;
    if (whole != whole) return kIsWide ? static_cast<To>(To{1} << (8 * sizeof(To) - 1)) : To{0};
    // The first power of two that is too large.
    const From end = std::ldexp(From{1}, std::numeric_limits<To>::digits);
    if (whole >= end) return std::numeric_limits<To>::max();
    const From low = std::is_signed_v<To> ? -end : From{0};
    return whole <= low ? std::numeric_limits<To>::min() : static_cast<To>(whole);
}

}  // namespace tmaasync_emulate

#define TMAASYNC_EMULATE_ROUNDED(MODE, ROUNDING)                                                  \
    inline float __fadd_##MODE(float a, float b) {                                                \
        return tmaasync_emulate::rounded<ROUNDING>([](float x, float y) { return x + y; }, a, b); \
    }                                                                                             \
    inline float __fsub_##MODE(float a, float b) {                                                \
        return tmaasync_emulate::rounded<ROUNDING>([](float x, float y) { return x - y; }, a, b); \
    }                                                                                             \
    inline float __fmul_##MODE(float a, float b) {                                                \
        return tmaasync_emulate::rounded<ROUNDING>([](float x, float y) { return x * y; }, a, b); \
    }                                                                                             \
    inline float __fdiv_##MODE(float a, float b) {                                                \
        return tmaasync_emulate::rounded<ROUNDING>([](float x, float y) { return x / y; }, a, b); \
    }                                                                                             \
    inline float __fmaf_##MODE(float a, float b, float c) {                                       \
        return tmaasync_emulate::rounded<ROUNDING>(                                               \
            [](float x, float y, float z) { return std::fma(x, y, z); }, a, b, c                  \
        );                                                                                        \
    }                                                                                             \
    inline float __frcp_##MODE(float a) {                                                         \
        return tmaasync_emulate::rounded<ROUNDING>([](float x) { return 1.0f / x; }, a);          \
    }                                                                                             \
    inline float __fsqrt_##MODE(float a) {                                                        \
        return tmaasync_emulate::rounded<ROUNDING>([](float x) { return std::sqrt(x); }, a);      \
    }                                                                                             \
    inline double __dadd_##MODE(double a, double b) {                                             \
        return tmaasync_emulate::rounded<ROUNDING>(                                               \
            [](double x, double y) { return x + y; }, a, b                                        \
        );                                                                                        \
    }                                                                                             \
    inline double __dsub_##MODE(double a, double b) {                                             \
        return tmaasync_emulate::rounded<ROUNDING>(                                               \
            [](double x, double y) { return x - y; }, a, b                                        \
        );                                                                                        \
    }                                                                                             \
    inline double __dmul_##MODE(double a, double b) {                                             \
        return tmaasync_emulate::rounded<ROUNDING>(                                               \
            [](double x, double y) { return x * y; }, a, b                                        \
        );                                                                                        \
    }                                                                                             \
    inline double __ddiv_##MODE(double a, double b) {                                             \
        return tmaasync_emulate::rounded<ROUNDING>(                                               \
            [](double x, double y) { return x / y; }, a, b                                        \
        );                                                                                        \
    }                                                                                             \
    inline double __fma_##MODE(double a, double b, double c) {                                    \
        return tmaasync_emulate::rounded<ROUNDING>(                                               \
            [](double x, double y, double z) { return std::fma(x, y, z); }, a, b, c               \
        );                                                                                        \
    }                                                                                             \
    inline double __drcp_##MODE(double a) {                                                       \
        return tmaasync_emulate::rounded<ROUNDING>([](double x) { return 1.0 / x; }, a);          \
    }                                                                                             \
    inline double __dsqrt_##MODE(double a) {                                                      \
        return tmaasync_emulate::rounded<ROUNDING>([](double x) { return std::sqrt(x); }, a);     \
    }                                                                                             \
    inline float __double2float_##MODE(double a) {                                                \
        return tmaasync_emulate::rounded<ROUNDING>([](double x) { return float(x); }, a);         \
    }                                                                                             \
    TMAASYNC_EMULATE_FROM_INTEGER(MODE, ROUNDING, int, int)                                       \
    TMAASYNC_EMULATE_FROM_INTEGER(MODE, ROUNDING, uint, unsigned)                                 \
    TMAASYNC_EMULATE_FROM_INTEGER(MODE, ROUNDING, ll, long long)                                  \
    TMAASYNC_EMULATE_FROM_INTEGER(MODE, ROUNDING, ull, unsigned long long)                        \
    TMAASYNC_EMULATE_TO_INTEGER(MODE, ROUNDING, int, int)                                         \
    TMAASYNC_EMULATE_TO_INTEGER(MODE, ROUNDING, uint, unsigned)                                   \
    TMAASYNC_EMULATE_TO_INTEGER(MODE, ROUNDING, ll, long long)                                    \
    TMAASYNC_EMULATE_TO_INTEGER(MODE, ROUNDING, ull, unsigned long long)
#define TMAASYNC_EMULATE_FROM_INTEGER(MODE, ROUNDING, NAME, TYPE)                        \
    inline float __##NAME##2float_##MODE(TYPE a) {                                       \
        return tmaasync_emulate::rounded<ROUNDING>([](TYPE x) { return float(x); }, a);  \
    }                                                                                    \
    inline double __##NAME##2double_##MODE(TYPE a) {                                     \
        return tmaasync_emulate::rounded<ROUNDING>([](TYPE x) { return double(x); }, a); \
    }
#define TMAASYNC_EMULATE_TO_INTEGER(MODE, ROUNDING, NAME, TYPE)                                \
    inline TYPE __float2##NAME##_##MODE(float a) {                                             \
        return tmaasync_emulate::saturated<TYPE>(                                              \
            tmaasync_emulate::rounded<ROUNDING>([](float x) { return std::nearbyint(x); }, a)  \
        );                                                                                     \
    }                                                                                          \
    inline TYPE __double2##NAME##_##MODE(double a) {                                           \
        return tmaasync_emulate::saturated<TYPE>(                                              \
            tmaasync_emulate::rounded<ROUNDING>([](double x) { return std::nearbyint(x); }, a) \
        );                                                                                     \
    }
TMAASYNC_EMULATE_ROUNDED(rn, FE_TONEAREST)
TMAASYNC_EMULATE_ROUNDED(rz, FE_TOWARDZERO)
TMAASYNC_EMULATE_ROUNDED(ru, FE_UPWARD)
TMAASYNC_EMULATE_ROUNDED(rd, FE_DOWNWARD)

// --- fast mathematics ----------------------------------------------------------------------------

// As exact as the C library; on the chip some of these keep fewer bits. It declares most names.
inline float __fdividef(float a, float b) noexcept {
    return a / b;
}
inline float __saturatef(float x) noexcept {
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
inline float rsqrtf(float x) noexcept {
    return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) noexcept {
    return 1.0 / std::sqrt(x);
}
inline float __frsqrt_rn(float x) noexcept {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}
inline float rcbrtf(float x) noexcept {
    return 1.0f / std::cbrt(x);
}
inline double rcbrt(double x) noexcept {
    return 1.0 / std::cbrt(x);
}

#define TMAASYNC_EMULATE_FAST(NAME)                                       \
    extern "C" TMAASYNC_EMULATE_INLINE float __##NAME(float x) noexcept { \
        return ::NAME(x);                                                 \
    }
TMAASYNC_EMULATE_FAST(expf)
TMAASYNC_EMULATE_FAST(exp10f)
TMAASYNC_EMULATE_FAST(logf)
TMAASYNC_EMULATE_FAST(log2f)
TMAASYNC_EMULATE_FAST(log10f)
TMAASYNC_EMULATE_FAST(sinf)
TMAASYNC_EMULATE_FAST(cosf)
TMAASYNC_EMULATE_FAST(tanf)
extern "C" TMAASYNC_EMULATE_INLINE float __powf(float x, float y) noexcept {
    return ::powf(x, y);
}
extern "C" TMAASYNC_EMULATE_INLINE void __sincosf(float x, float* sine, float* cosine) noexcept {
    *sine = ::sinf(x);
    *cosine = ::cosf(x);
}

// --- loads and stores with a hint for the caches, which there are none of ------------------------

#define TMAASYNC_EMULATE_CACHED_LOAD(NAME)            \
    template <typename T>                             \
    TMAASYNC_EMULATE_INLINE T NAME(const T* source) { \
        return *source;                               \
    }
#define TMAASYNC_EMULATE_CACHED_STORE(NAME)                                       \
    template <typename T>                                                         \
    TMAASYNC_EMULATE_INLINE void NAME(T* target, std::type_identity_t<T> value) { \
        *target = value;                                                          \
    }
TMAASYNC_EMULATE_CACHED_LOAD(__ldg)
TMAASYNC_EMULATE_CACHED_LOAD(__ldca)
TMAASYNC_EMULATE_CACHED_LOAD(__ldcg)
TMAASYNC_EMULATE_CACHED_LOAD(__ldcs)
TMAASYNC_EMULATE_CACHED_LOAD(__ldlu)
TMAASYNC_EMULATE_CACHED_STORE(__stwb)
TMAASYNC_EMULATE_CACHED_STORE(__stcg)
TMAASYNC_EMULATE_CACHED_STORE(__stcs)
TMAASYNC_EMULATE_CACHED_STORE(__stwt)
// A volatile access, for integers and floats.
template <typename T>
TMAASYNC_EMULATE_INLINE T __ldcv(const T* source) {
    if constexpr (std::is_arithmetic_v<T>) return *const_cast<const volatile T*>(source);
    return *source;
}

// --- where a pointer points ----------------------------------------------------------------------

inline unsigned __isShared(const void* pointer) {
    const auto offset =
        static_cast<const std::uint8_t*>(pointer) - tmaasync_emulate::current_thread().window;
    return offset >= 0 && offset < std::ptrdiff_t{tmaasync_emulate::kWindowBytes};
}
inline unsigned __isLocal(const void* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return (address ^ tmaasync_emulate::stack_pointer()) < tmaasync_emulate::kStackBytes;
}
inline unsigned __isGlobal(const void* pointer) {
    return !__isShared(pointer) && !__isLocal(pointer);
}
inline void* __cvta_shared_to_generic(std::size_t offset) {
    return tmaasync_emulate::current_thread().window + offset;
}
inline std::size_t __cvta_generic_to_global(const void* pointer) {
    return reinterpret_cast<std::size_t>(pointer);
}
inline void* __cvta_global_to_generic(std::size_t address) {
    return reinterpret_cast<void*>(address);
}
