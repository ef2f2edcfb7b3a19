// Functions on the parts of a word, 4 bytes or 2 halves: CUDA Math API, "SIMD Intrinsics". In
// names, u is unsigned and s is signed; ss and us clip to the range of the type.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

namespace tmaasync_emulate {

// Calls change(a's part, b's part, c's part) for every part; the results keep the part's bits.
template <typename Part, typename Change, typename... Words>
constexpr auto each_part(Change change, Words... words) {
    constexpr int kBits = 8 * sizeof(Part);
    unsigned result = 0;
    for (int shift = 0; shift < 32; shift += kBits) {
        const auto part = static_cast<Part>(change(int{static_cast<Part>(words >> shift)}...));
        result |= static_cast<unsigned>(static_cast<std::make_unsigned_t<Part>>(part)) << shift;
    }
    return result;
}

// The sum of all results of combine(a's part, b's part).
template <typename Part, typename Combine>
constexpr auto sum_of_parts(Combine combine, unsigned a, unsigned b) {
    unsigned sum = 0;
    for (int shift = 0; shift < 32; shift += 8 * static_cast<int>(sizeof(Part))) {
        const int x = static_cast<Part>(a >> shift), y = static_cast<Part>(b >> shift);
        sum += static_cast<unsigned>(combine(x, y));
    }
    return sum;
}

template <typename Part>
constexpr auto clipped(int value) {
    constexpr int kLow = std::numeric_limits<Part>::min(), kHigh = std::numeric_limits<Part>::max();
    return value < kLow ? kLow : value > kHigh ? kHigh : value;
}

constexpr int magnitude(int value) {
    return value < 0 ? -value : value;
}

}  // namespace tmaasync_emulate

#define TMAASYNC_EMULATE_PARTS_1(NAME, PART, RESULT)                                 \
    inline unsigned NAME(unsigned a) {                                               \
        using Part = PART;                                                           \
        return ::tmaasync_emulate::each_part<Part>([](int x) { return RESULT; }, a); \
    }
#define TMAASYNC_EMULATE_PARTS_2(NAME, PART, RESULT)                                           \
    inline unsigned NAME(unsigned a, unsigned b) {                                             \
        using Part = PART;                                                                     \
        return ::tmaasync_emulate::each_part<Part>([](int x, int y) { return RESULT; }, a, b); \
    }
#define TMAASYNC_EMULATE_PARTS_SUM(NAME, PART, RESULT)                                            \
    inline unsigned NAME(unsigned a, unsigned b) {                                                \
        return ::tmaasync_emulate::sum_of_parts<PART>([](int x, int y) { return RESULT; }, a, b); \
    }
// A comparison sets all bits of a part, or the lowest one.
#define TMAASYNC_EMULATE_COMPARE(NAME, N, PART, TEST)                \
    TMAASYNC_EMULATE_PARTS_2(__vcmp##NAME##N, PART, (TEST) ? -1 : 0) \
    TMAASYNC_EMULATE_PARTS_2(__vset##NAME##N, PART, (TEST) ? 1 : 0)
#define TMAASYNC_EMULATE_COMPARE_ORDER(NAME, N, SIGNED, UNSIGNED, TEST) \
    TMAASYNC_EMULATE_COMPARE(NAME##s, N, SIGNED, TEST)                  \
    TMAASYNC_EMULATE_COMPARE(NAME##u, N, UNSIGNED, TEST)

#define TMAASYNC_EMULATE_SIMD(N, SIGNED, UNSIGNED)                                               \
    TMAASYNC_EMULATE_PARTS_1(__vabs##N, SIGNED, ::tmaasync_emulate::magnitude(x))                \
    TMAASYNC_EMULATE_PARTS_1(                                                                    \
        __vabsss##N, SIGNED, ::tmaasync_emulate::clipped<Part>(::tmaasync_emulate::magnitude(x)) \
    )                                                                                            \
    TMAASYNC_EMULATE_PARTS_1(__vneg##N, SIGNED, -x)                                              \
    TMAASYNC_EMULATE_PARTS_1(__vnegss##N, SIGNED, ::tmaasync_emulate::clipped<Part>(-x))         \
    TMAASYNC_EMULATE_PARTS_2(__vadd##N, UNSIGNED, x + y)                                         \
    TMAASYNC_EMULATE_PARTS_2(__vaddss##N, SIGNED, ::tmaasync_emulate::clipped<Part>(x + y))      \
    TMAASYNC_EMULATE_PARTS_2(__vaddus##N, UNSIGNED, ::tmaasync_emulate::clipped<Part>(x + y))    \
    TMAASYNC_EMULATE_PARTS_2(__vsub##N, UNSIGNED, x - y)                                         \
    TMAASYNC_EMULATE_PARTS_2(__vsubss##N, SIGNED, ::tmaasync_emulate::clipped<Part>(x - y))      \
    TMAASYNC_EMULATE_PARTS_2(__vsubus##N, UNSIGNED, ::tmaasync_emulate::clipped<Part>(x - y))    \
    TMAASYNC_EMULATE_PARTS_2(__vhaddu##N, UNSIGNED, (x + y) >> 1)                                \
    TMAASYNC_EMULATE_PARTS_2(__vavgu##N, UNSIGNED, (x + y + 1) >> 1)                             \
    /* Halves are rounded away from zero. */                                                     \
    TMAASYNC_EMULATE_PARTS_2(__vavgs##N, SIGNED, (x + y + (x + y >= 0 ? 1 : 0)) >> 1)            \
    TMAASYNC_EMULATE_PARTS_2(__vabsdiffu##N, UNSIGNED, ::tmaasync_emulate::magnitude(x - y))     \
    TMAASYNC_EMULATE_PARTS_2(__vabsdiffs##N, SIGNED, ::tmaasync_emulate::magnitude(x - y))       \
    TMAASYNC_EMULATE_PARTS_SUM(__vsadu##N, UNSIGNED, ::tmaasync_emulate::magnitude(x - y))       \
    TMAASYNC_EMULATE_PARTS_SUM(__vsads##N, SIGNED, ::tmaasync_emulate::magnitude(x - y))         \
    TMAASYNC_EMULATE_PARTS_2(__vmaxs##N, SIGNED, x < y ? y : x)                                  \
    TMAASYNC_EMULATE_PARTS_2(__vmaxu##N, UNSIGNED, x < y ? y : x)                                \
    TMAASYNC_EMULATE_PARTS_2(__vmins##N, SIGNED, y < x ? y : x)                                  \
    TMAASYNC_EMULATE_PARTS_2(__vminu##N, UNSIGNED, y < x ? y : x)                                \
    TMAASYNC_EMULATE_COMPARE(eq, N, UNSIGNED, x == y)                                            \
    TMAASYNC_EMULATE_COMPARE(ne, N, UNSIGNED, x != y)                                            \
    TMAASYNC_EMULATE_COMPARE_ORDER(ge, N, SIGNED, UNSIGNED, x >= y)                              \
    TMAASYNC_EMULATE_COMPARE_ORDER(gt, N, SIGNED, UNSIGNED, x > y)                               \
    TMAASYNC_EMULATE_COMPARE_ORDER(le, N, SIGNED, UNSIGNED, x <= y)                              \
    TMAASYNC_EMULATE_COMPARE_ORDER(lt, N, SIGNED, UNSIGNED, x < y)
TMAASYNC_EMULATE_SIMD(2, std::int16_t, std::uint16_t)
TMAASYNC_EMULATE_SIMD(4, std::int8_t, std::uint8_t)

// --- Hopper's instructions for the smaller and the larger ----------------------------------------

namespace tmaasync_emulate {

template <typename Whole>
constexpr auto smaller(Whole a, Whole b) {
    return b < a ? b : a;
}
template <typename Whole>
constexpr auto larger(Whole a, Whole b) {
    return a < b ? b : a;
}
template <typename Whole>
constexpr auto wrapped_sum(Whole a, Whole b) {
    return static_cast<Whole>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}

}  // namespace tmaasync_emulate

// Functions on one word of type WHOLE and on two halves of type PART, of x and y or of x, y and z.
// Each also exists with a result of 0 in place of a negative one.
#define TMAASYNC_EMULATE_WHOLE(SUFFIX, WHOLE, PICK, RELU)                                          \
    inline WHOLE __vi##PICK##3_##SUFFIX(WHOLE x, WHOLE y, WHOLE z) {                               \
        return TMAASYNC_EMULATE_##RELU(TMAASYNC_EMULATE_##PICK(TMAASYNC_EMULATE_##PICK(x, y), z)); \
    }                                                                                              \
    inline WHOLE __viadd##PICK##_##SUFFIX(WHOLE x, WHOLE y, WHOLE z) {                             \
        return TMAASYNC_EMULATE_##RELU(                                                            \
            TMAASYNC_EMULATE_##PICK(::tmaasync_emulate::wrapped_sum(x, y), z)                      \
        );                                                                                         \
    }
#define TMAASYNC_EMULATE_HALVES(SUFFIX, PART, PICK, RELU)                          \
    inline unsigned __vi##PICK##3_##SUFFIX(unsigned a, unsigned b, unsigned c) {   \
        return ::tmaasync_emulate::each_part<PART>(                                \
            [](int x, int y, int z) {                                              \
                return TMAASYNC_EMULATE_##RELU(                                    \
                    TMAASYNC_EMULATE_##PICK(TMAASYNC_EMULATE_##PICK(x, y), z)      \
                );                                                                 \
            },                                                                     \
            a, b, c                                                                \
        );                                                                         \
    }                                                                              \
    inline unsigned __viadd##PICK##_##SUFFIX(unsigned a, unsigned b, unsigned c) { \
        return ::tmaasync_emulate::each_part<PART>(                                \
            [](int x, int y, int z) {                                              \
                const int sum = static_cast<PART>(x + y);                          \
                return TMAASYNC_EMULATE_##RELU(TMAASYNC_EMULATE_##PICK(sum, z));   \
            },                                                                     \
            a, b, c                                                                \
        );                                                                         \
    }
#define TMAASYNC_EMULATE_max(X, Y) ::tmaasync_emulate::larger(X, Y)
#define TMAASYNC_EMULATE_min(X, Y) ::tmaasync_emulate::smaller(X, Y)
#define TMAASYNC_EMULATE_PLAIN(X) (X)
#define TMAASYNC_EMULATE_RELU(X) ::tmaasync_emulate::larger(X, 0)
#define TMAASYNC_EMULATE_PICK(PICK)                                                               \
    TMAASYNC_EMULATE_WHOLE(s32, int, PICK, PLAIN)                                                 \
    TMAASYNC_EMULATE_WHOLE(u32, unsigned, PICK, PLAIN)                                            \
    TMAASYNC_EMULATE_WHOLE(s32_relu, int, PICK, RELU)                                             \
    TMAASYNC_EMULATE_HALVES(s16x2, std::int16_t, PICK, PLAIN)                                     \
    TMAASYNC_EMULATE_HALVES(u16x2, std::uint16_t, PICK, PLAIN)                                    \
    TMAASYNC_EMULATE_HALVES(s16x2_relu, std::int16_t, PICK, RELU)                                 \
    inline int __vi##PICK##_s32_relu(int x, int y) {                                              \
        return TMAASYNC_EMULATE_RELU(TMAASYNC_EMULATE_##PICK(x, y));                              \
    }                                                                                             \
    inline unsigned __vi##PICK##_s16x2_relu(unsigned a, unsigned b) {                             \
        return ::tmaasync_emulate::each_part<std::int16_t>(                                       \
            [](int x, int y) { return TMAASYNC_EMULATE_RELU(TMAASYNC_EMULATE_##PICK(x, y)); }, a, \
            b                                                                                     \
        );                                                                                        \
    }                                                                                             \
    TMAASYNC_EMULATE_WHICH(s32, int, PICK)                                                        \
    TMAASYNC_EMULATE_WHICH(u32, unsigned, PICK)                                                   \
    TMAASYNC_EMULATE_WHICH_OF_HALVES(s16x2, vmaxs2, vmins2, PICK)                                 \
    TMAASYNC_EMULATE_WHICH_OF_HALVES(u16x2, vmaxu2, vminu2, PICK)
// These also report whether the result is the first operand.
#define TMAASYNC_EMULATE_WHICH(SUFFIX, WHOLE, PICK)                         \
    inline WHOLE __vib##PICK##_##SUFFIX(WHOLE x, WHOLE y, bool* is_first) { \
        const WHOLE picked = TMAASYNC_EMULATE_##PICK(x, y);                 \
        *is_first = picked == x;                                            \
        return picked;                                                      \
    }
#define TMAASYNC_EMULATE_WHICH_OF_HALVES(SUFFIX, MAX, MIN, PICK)                \
    inline unsigned __vib##PICK##_##SUFFIX(                                     \
        unsigned a, unsigned b, bool* is_high_first, bool* is_low_first         \
    ) {                                                                         \
        const unsigned picked = TMAASYNC_EMULATE_HALVES_##PICK(MAX, MIN)(a, b); \
        *is_high_first = picked >> 16 == a >> 16;                               \
        *is_low_first = (picked & 0xffff) == (a & 0xffff);                      \
        return picked;                                                          \
    }
#define TMAASYNC_EMULATE_HALVES_max(MAX, MIN) __##MAX
#define TMAASYNC_EMULATE_HALVES_min(MAX, MIN) __##MIN
TMAASYNC_EMULATE_PICK(max)
TMAASYNC_EMULATE_PICK(min)
