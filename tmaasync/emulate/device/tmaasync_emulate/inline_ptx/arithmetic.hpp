// Integers and floats of inline PTX (PTX ISA: "Integer Arithmetic Instructions", "Floating Point
// Instructions", "Half Precision ...", "Comparison and Selection", "Logic and Shift").
#pragma once

#include <cmath>
#include <limits>
#include <tmaasync_emulate/inline_ptx/registers.hpp>
#include <tmaasync_emulate/intrinsics.hpp>
#include <utility>

namespace tmaasync_emulate::inline_ptx {

template <typename T>
constexpr bool kIsPair = false;
template <typename T>
constexpr bool kIsPair<Pair<T>> = true;
template <typename T>
concept Single = !kIsPair<T>;

// --- carries -------------------------------------------------------------------------------------

// The condition code persists between asm statements. Its accesses are not the kernel's own.
__attribute__((noinline)) TMAASYNC_EMULATE_UNSEEN inline bool exchange_carry(bool carries) {
    return std::exchange(current_thread().carries, carries);
}

template <bool kIn, bool kOut, typename T>
TMAASYNC_EMULATE_INLINE T with_carry(T a, std::type_identity_t<T> b) {
    using Word = Bits<sizeof(T)>;
    const bool carry = exchange_carry(false);
    Word sum = static_cast<Word>(a);
    bool carries = __builtin_add_overflow(sum, static_cast<Word>(b), &sum);
    carries |= __builtin_add_overflow(sum, Word{kIn && carry}, &sum);
    exchange_carry(kOut ? carries : carry);
    return static_cast<T>(sum);
}

template <bool kIn, bool kOut, typename T>
TMAASYNC_EMULATE_INLINE T with_borrow(T a, std::type_identity_t<T> b) {
    using Word = Bits<sizeof(T)>;
    const bool borrow = exchange_carry(false);
    Word left = static_cast<Word>(a);
    bool borrows = __builtin_sub_overflow(left, static_cast<Word>(b), &left);
    borrows |= __builtin_sub_overflow(left, Word{kIn && borrow}, &left);
    exchange_carry(kOut ? borrows : borrow);
    return static_cast<T>(left);
}

// --- floats --------------------------------------------------------------------------------------

enum class Round { kNone, kRn, kRz, kRm, kRp, kRni, kRzi, kRmi, kRpi, kRna };

template <Round kRound>
constexpr int kMode = kRound == Round::kRz || kRound == Round::kRzi   ? FE_TOWARDZERO
                      : kRound == Round::kRm || kRound == Round::kRmi ? FE_DOWNWARD
                      : kRound == Round::kRp || kRound == Round::kRpi ? FE_UPWARD
                                                                      : FE_TONEAREST;

template <typename T>
constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, F16> || std::is_same_v<T, BF16>;

// The NaN that the chip returns.
template <typename T>
constexpr T nan_of() {
    if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(0x7fffffffu);
    if constexpr (std::is_same_v<T, double>) return std::bit_cast<double>(0x7fffffffffffffffull);
    if constexpr (std::is_same_v<T, F16>) return std::bit_cast<F16>(std::uint16_t{0x7fff});
    if constexpr (std::is_same_v<T, BF16>) return std::bit_cast<BF16>(std::uint16_t{0x7fff});
}

template <typename T>
T canonical(T value) {
    return value != value ? nan_of<T>() : value;
}

// With .ftz, subnormal numbers become zero.
template <bool kFtz, typename T>
T flushed(T value) {
    if constexpr (kFtz && std::is_same_v<T, float>) {
        if (std::fabs(value) < 0x1p-126f) return std::copysign(0.0f, value);
    }
    if constexpr (kFtz && std::is_same_v<T, F16>) {
        if (std::fabs(static_cast<float>(value)) < 0x1p-14f) {
            return static_cast<F16>(std::copysign(0.0f, static_cast<float>(value)));
        }
    }
    return value;
}

template <bool kSaturates, typename T>
T limited(T value) {
    if constexpr (kSaturates) {
        const T zero = static_cast<T>(0.0f), one = static_cast<T>(1.0f);
        return value > zero ? (value < one ? value : one) : zero;
    }
    return value;
}

template <bool kRelu, typename T>
T rectified(T value) {
    if constexpr (kRelu) {
        if (value == value && !(value > static_cast<T>(0.0f))) return static_cast<T>(0.0f);
    }
    return value;
}

// A sum as a double that rounds to a narrower type as the exact sum does: inexact sums are odd.
inline double odd_sum(double a, double b) {
    const double sum = a + b;
    const double of_b = sum - a;
    const double error = (a - (sum - of_b)) + (b - of_b);
    auto word = std::bit_cast<std::uint64_t>(sum);
    if (error == 0 || !std::isfinite(sum) || (word & 1)) return sum;
    word += (error > 0) == (sum > 0) ? 1 : -1;
    return std::bit_cast<double>(word);
}

// Rounds a double, which is odd if it is inexact.
inline F16 to_f16(double value) {
    return static_cast<F16>(value);
}
inline BF16 to_bf16(double value) {
    auto narrow = static_cast<float>(value);
    auto word = std::bit_cast<std::uint32_t>(narrow);
    // Makes an inexact result odd again, so that only the second rounding counts.
    if (narrow != value && std::isfinite(narrow) && !(word & 1)) {
        word += (std::fabs(value) > std::fabs(narrow)) ? 1 : -1;
        narrow = std::bit_cast<float>(word);
    }
    return BF16(narrow);
}
template <typename T>
T narrowed(double value) {
    if constexpr (std::is_same_v<T, F16>) return to_f16(value);
    if constexpr (std::is_same_v<T, BF16>) return to_bf16(value);
}

template <Round kRound, typename T, typename Compute, typename... Values>
T computed(Compute compute, Values... values) {
    if constexpr (kMode<kRound> == FE_TONEAREST) {
        return compute(values...);
    } else {
        return rounded<kMode<kRound>>(compute, values...);
    }
}

// add, sub, mul and fma of one element, with their modifiers.
template <Round kRound, bool kFtz, bool kSat, bool kRelu, Single T>
T fused(T a, T b, T c) {
    a = flushed<kFtz>(a), b = flushed<kFtz>(b), c = flushed<kFtz>(c);
    T result;
    if constexpr (std::is_floating_point_v<T>) {
        result = computed<kRound, T>([](T x, T y, T z) { return std::fma(x, y, z); }, a, b, c);
    } else {
        // The significand of a * b has at most 22 bits.
        const auto wide = [](T value) { return static_cast<double>(static_cast<float>(value)); };
        result = narrowed<T>(odd_sum(wide(a) * wide(b), wide(c)));
    }
    return canonical(rectified<kRelu>(limited<kSat>(flushed<kFtz>(result))));
}

template <Round kRound, bool kFtz, bool kSat, Single T>
T sum(T a, T b) {
    a = flushed<kFtz>(a), b = flushed<kFtz>(b);
    T result;
    if constexpr (std::is_floating_point_v<T>) {
        result = computed<kRound, T>([](T x, T y) { return x + y; }, a, b);
    } else {
        result = narrowed<T>(odd_sum(static_cast<float>(a), static_cast<float>(b)));
    }
    return canonical(limited<kSat>(flushed<kFtz>(result)));
}

template <typename T>
T negated(T value) {
    if constexpr (std::is_same_v<T, BF16> || std::is_same_v<T, F16>) {
        const auto bits = std::bit_cast<std::uint16_t>(value);
        return std::bit_cast<T>(static_cast<std::uint16_t>(bits ^ 0x8000));
    } else {
        return -value;
    }
}

template <Round kRound, bool kFtz, bool kSat, Single T>
T difference(T a, T b) {
    return sum<kRound, kFtz, kSat>(a, negated(b));
}

template <Round kRound, bool kFtz, bool kSat, Single T>
T multiplied(T a, T b) {
    a = flushed<kFtz>(a), b = flushed<kFtz>(b);
    T result;
    if constexpr (std::is_floating_point_v<T>) {
        result = computed<kRound, T>([](T x, T y) { return x * y; }, a, b);
    } else {
        result = narrowed<T>(
            static_cast<double>(static_cast<float>(a)) * static_cast<double>(static_cast<float>(b))
        );
    }
    return canonical(limited<kSat>(flushed<kFtz>(result)));
}

template <Round kRound, bool kFtz, typename T>
T quotient(T a, T b) {
    a = flushed<kFtz>(a), b = flushed<kFtz>(b);
    return canonical(flushed<kFtz>(computed<kRound, T>([](T x, T y) { return x / y; }, a, b)));
}

template <bool kFtz, Single T>
T magnitude(T value) {
    value = flushed<kFtz>(value);
    if constexpr (std::is_same_v<T, BF16> || std::is_same_v<T, F16>) {
        const auto bits = std::bit_cast<std::uint16_t>(value);
        return std::bit_cast<T>(static_cast<std::uint16_t>(bits & 0x7fff));
    } else {
        return std::fabs(value);
    }
}

template <bool kFtz, Single T>
T opposite(T value) {
    return negated(flushed<kFtz>(value));
}

// For one NaN the result is the other operand, except with .NaN. -0 is less than 0.
template <bool kIsMax, bool kFtz, bool kKeepsNan, bool kXorSign, Single T>
T extreme(T a, T b) {
    a = flushed<kFtz>(a), b = flushed<kFtz>(b);
    const bool is_negative =
        std::signbit(static_cast<float>(a)) != std::signbit(static_cast<float>(b));
    if constexpr (kXorSign) a = magnitude<false>(a), b = magnitude<false>(b);
    T result;
    if (a != a || b != b) {
        result = kKeepsNan || (a != a && b != b) ? nan_of<T>() : a != a ? b : a;
    } else if (a == b) {
        result = std::signbit(static_cast<float>(a)) == kIsMax ? b : a;
    } else {
        result = (a < b) == kIsMax ? b : a;
    }
    if constexpr (kXorSign) {
        if (is_negative && result == result) result = negated(result);
    }
    return result;
}

// --- both halves of a register -------------------------------------------------------------------

template <typename T, typename Act>
Pair<T> each(Act act, Pair<T> a) {
    return {act(a.low), act(a.high)};
}
template <typename T, typename Act>
Pair<T> each(Act act, Pair<T> a, Pair<T> b) {
    return {act(a.low, b.low), act(a.high, b.high)};
}
template <typename T, typename Act>
Pair<T> each(Act act, Pair<T> a, Pair<T> b, Pair<T> c) {
    return {act(a.low, b.low, c.low), act(a.high, b.high, c.high)};
}

#define TMAASYNC_EMULATE_OF_PAIRS(NAME, TEMPLATE, ARGUMENTS)                                    \
    template <TEMPLATE, typename T, typename... More>                                           \
    Pair<T> NAME(Pair<T> first, More... more) {                                                 \
        return each([](auto... values) { return NAME<ARGUMENTS>(values...); }, first, more...); \
    }
#define TMAASYNC_EMULATE_LIST(...) __VA_ARGS__
TMAASYNC_EMULATE_OF_PAIRS(
    fused,
    TMAASYNC_EMULATE_LIST(Round kRound, bool kFtz, bool kSat, bool kRelu),
    TMAASYNC_EMULATE_LIST(kRound, kFtz, kSat, kRelu)
)
TMAASYNC_EMULATE_OF_PAIRS(
    sum,
    TMAASYNC_EMULATE_LIST(Round kRound, bool kFtz, bool kSat),
    TMAASYNC_EMULATE_LIST(kRound, kFtz, kSat)
)
TMAASYNC_EMULATE_OF_PAIRS(
    difference,
    TMAASYNC_EMULATE_LIST(Round kRound, bool kFtz, bool kSat),
    TMAASYNC_EMULATE_LIST(kRound, kFtz, kSat)
)
TMAASYNC_EMULATE_OF_PAIRS(
    multiplied,
    TMAASYNC_EMULATE_LIST(Round kRound, bool kFtz, bool kSat),
    TMAASYNC_EMULATE_LIST(kRound, kFtz, kSat)
)
TMAASYNC_EMULATE_OF_PAIRS(magnitude, bool kFtz, kFtz)
TMAASYNC_EMULATE_OF_PAIRS(opposite, bool kFtz, kFtz)
TMAASYNC_EMULATE_OF_PAIRS(
    extreme,
    TMAASYNC_EMULATE_LIST(bool kIsMax, bool kFtz, bool kKeepsNan, bool kXorSign),
    TMAASYNC_EMULATE_LIST(kIsMax, kFtz, kKeepsNan, kXorSign)
)
#undef TMAASYNC_EMULATE_LIST
#undef TMAASYNC_EMULATE_OF_PAIRS

// --- approximations, as exact as the C library ---------------------------------------------------

template <bool kFtz, Single T, typename Compute>
T approximated(Compute compute, T value) {
    return canonical(
        flushed<kFtz>(static_cast<T>(compute(static_cast<float>(flushed<kFtz>(value)))))
    );
}
template <bool kFtz, typename T, typename Compute>
Pair<T> approximated(Compute compute, Pair<T> value) {
    return {approximated<kFtz>(compute, value.low), approximated<kFtz>(compute, value.high)};
}

#define TMAASYNC_EMULATE_APPROXIMATION(NAME, RESULT)                             \
    template <bool kFtz, typename T>                                             \
    T NAME(T value) {                                                            \
        return approximated<kFtz>([](float x) { return float(RESULT); }, value); \
    }
TMAASYNC_EMULATE_APPROXIMATION(power_of_two, std::exp2(x))
TMAASYNC_EMULATE_APPROXIMATION(log_of_two, std::log2(x))
TMAASYNC_EMULATE_APPROXIMATION(sine, std::sin(x))
TMAASYNC_EMULATE_APPROXIMATION(cosine, std::cos(x))
TMAASYNC_EMULATE_APPROXIMATION(hyperbolic_tangent, std::tanh(x))
#undef TMAASYNC_EMULATE_APPROXIMATION

template <Round kRound, bool kFtz, typename T>
T reciprocal(T value) {
    return quotient<kRound, kFtz>(T{1}, value);
}
template <Round kRound, bool kFtz, typename T>
T root(T value) {
    value = flushed<kFtz>(value);
    return canonical(computed<kRound, T>([](T x) { return std::sqrt(x); }, value));
}
template <bool kFtz, typename T>
T reciprocal_root(T value) {
    const double wide = flushed<kFtz>(value);
    return canonical(flushed<kFtz>(static_cast<T>(1 / std::sqrt(wide))));
}

enum class FloatClass { kFinite, kInfinite, kNumber, kNotanumber, kNormal, kSubnormal };

template <FloatClass kClass, typename T>
bool is_of(T value) {
    if constexpr (kClass == FloatClass::kFinite) return std::isfinite(value);
    if constexpr (kClass == FloatClass::kInfinite) return std::isinf(value);
    if constexpr (kClass == FloatClass::kNumber) return !std::isnan(value);
    if constexpr (kClass == FloatClass::kNotanumber) return std::isnan(value);
    if constexpr (kClass == FloatClass::kNormal) return std::isnormal(value);
    return std::fpclassify(value) == FP_SUBNORMAL;
}

// --- comparisons ---------------------------------------------------------------------------------

enum class Compare {
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kLo,
    kLs,
    kHi,
    kHs,
    kEqu,
    kNeu,
    kLtu,
    kLeu,
    kGtu,
    kGeu,
    kNum,
    kNan,
};

// Ordered comparisons with a NaN are false, and unordered ones are true.
template <Compare kCompare, bool kFtz, typename T>
bool holds(T a, T b) {
    using enum Compare;
    if constexpr (kIsFloat<T>) {
        a = flushed<kFtz>(a), b = flushed<kFtz>(b);
        const bool has_nan = a != a || b != b;
        if constexpr (kCompare == kNum) return !has_nan;
        if constexpr (kCompare == kNan) return has_nan;
        if (has_nan) return kCompare >= kEqu;
    }
    switch (kCompare) {
        case kEq:
        case kEqu:
            return a == b;
        case kNe:
        case kNeu:
            return a != b;
        case kLt:
        case kLo:
        case kLtu:
            return a < b;
        case kLe:
        case kLs:
        case kLeu:
            return a <= b;
        case kGt:
        case kHi:
        case kGtu:
            return a > b;
        default:
            return a >= b;
    }
}
template <Compare kCompare, bool kFtz, typename T>
bool first_holds(Pair<T> a, Pair<T> b) {
    return holds<kCompare, kFtz>(a.low, b.low);
}
template <Compare kCompare, bool kFtz, typename T>
bool second_holds(Pair<T> a, Pair<T> b) {
    return holds<kCompare, kFtz>(a.high, b.high);
}

enum class BoolOp { kAnd, kOr, kXor };

constexpr bool joined(BoolOp op, bool a, bool b) {
    return op == BoolOp::kAnd ? a && b : op == BoolOp::kOr ? a || b : a != b;
}

// The result of set: all ones, or 1.0.
template <typename To>
To truth(bool is_true) {
    if constexpr (kIsFloat<To>) return static_cast<To>(is_true ? 1.0f : 0.0f);
    return is_true ? static_cast<To>(-1) : To{0};
}

// --- integers, which wrap ------------------------------------------------------------------------

template <typename T>
using Unsigned = std::make_unsigned_t<T>;
template <typename T>
using Wide = std::conditional_t<
    std::is_signed_v<T>,
    std::conditional_t<
        sizeof(T) == 2,
        std::int32_t,
        std::conditional_t<sizeof(T) == 4, std::int64_t, __int128>>,
    std::conditional_t<
        sizeof(T) == 2,
        std::uint32_t,
        std::conditional_t<sizeof(T) == 4, std::uint64_t, unsigned __int128>>>;

template <typename T>
T whole_sum(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <typename T>
T whole_difference(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
inline std::int32_t whole_relu(std::int32_t value) {
    return value < 0 ? 0 : value;
}
inline std::int32_t kept_within(std::int64_t value) {
    constexpr std::int64_t low = INT32_MIN, high = INT32_MAX;
    return static_cast<std::int32_t>(value < low ? low : value > high ? high : value);
}
template <typename T>
Wide<T> wide_product(T a, T b) {
    return static_cast<Wide<T>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
}
template <typename T>
T low_product(T a, T b) {
    return static_cast<T>(wide_product(a, b));
}
template <typename T>
T high_product(T a, T b) {
    return static_cast<T>(wide_product(a, b) >> 8 * sizeof(T));
}
template <typename T>
T whole_quotient(T a, T b) {
    if constexpr (std::is_signed_v<T>) {
        if (b == -1) return whole_difference(T{0}, a);
    }
    return static_cast<T>(a / b);
}
template <typename T>
T remainder_of(T a, T b) {
    if constexpr (std::is_signed_v<T>) {
        if (b == -1) return 0;
    }
    return static_cast<T>(a % b);
}
template <typename T>
T whole_magnitude(T a) {
    return a < 0 ? whole_difference(T{0}, a) : a;
}
template <typename T>
T distance_sum(T a, T b, T c) {
    return whole_sum(c, a < b ? whole_difference(b, a) : whole_difference(a, b));
}
template <typename T>
T left_shift(T a, std::uint32_t by) {
    return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << by);
}
template <typename T>
T right_shift(T a, std::uint32_t by) {
    constexpr std::uint32_t kBits = 8 * sizeof(T);
    if (by >= kBits) return std::is_signed_v<T> && a < 0 ? T(-1) : T{0};
    return static_cast<T>(a >> by);
}
// dp4a, and dp2a from byte kFirst of b on.
template <int kCount, int kFirst, typename A, typename B>
std::uint32_t dot_product(A a, B b, std::uint32_t sum) {
    constexpr int kBits = 32 / kCount;
    for (int i = 0; i < kCount; ++i) {
        const A x = static_cast<A>(static_cast<std::uint32_t>(a) << (32 - kBits * (i + 1)));
        const B y = static_cast<B>(static_cast<std::uint32_t>(b) << (24 - 8 * (kFirst + i)));
        sum += static_cast<std::uint32_t>(x >> (32 - kBits)) * static_cast<std::uint32_t>(y >> 24);
    }
    return sum;
}

// fns: the position of the count-th set bit from the first one on; all ones if there is none.
inline std::uint32_t nth_set_bit(std::uint32_t mask, std::uint32_t first, std::int32_t count) {
    if (count == 0) return mask >> (first & 31) & 1 ? first : ~0u;
    std::int64_t left = count > 0 ? count : -std::int64_t{count};
    for (std::int64_t at = first; at >= 0 && at < 32; at += count > 0 ? 1 : -1) {
        if ((mask >> at & 1) && --left == 0) return static_cast<std::uint32_t>(at);
    }
    return ~0u;
}

inline std::uint32_t any_of_three(
    std::uint32_t a, std::uint32_t b, std::uint32_t c, unsigned table
) {
    std::uint32_t word = 0;
    for (unsigned row = 0; row < 8; ++row) {
        if (!(table >> row & 1)) continue;
        word |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    }
    return word;
}

// bmsk: a mask of ones from a bit on.
template <bool kClamps>
std::uint32_t masked_bits(std::uint32_t first, std::uint32_t width) {
    if (kClamps && first >= 32) return 0;
    const std::uint32_t end = (first & 31) + (width & 31);
    const std::uint32_t above = end >= 32 || (kClamps && width >= 32) ? 0 : ~0u << end;
    return ~0u << (first & 31) & ~above;
}
// szext: the lowest bits, extended by zeros or by their sign.
template <bool kClamps, typename T>
T extended_from(T value, std::uint32_t width) {
    if (kClamps && width >= 32) return value;
    const std::uint32_t above = ~0u << (width & 31);
    const bool is_negative = std::is_signed_v<T> && above != ~0u && value >> ((width & 31) - 1) & 1;
    return static_cast<T>((static_cast<std::uint32_t>(value) & ~above) | (is_negative ? above : 0));
}

enum class PermuteMode { kNone, kF4E, kB4E, kRc8, kEcl, kEcr, kRc16 };

// prmt: the fourth bit of a digit asks for the byte's sign.
template <PermuteMode kMode>
std::uint32_t permuted(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
    using enum PermuteMode;
    const std::uint64_t both = std::uint64_t{b} << 32 | a;
    const std::uint32_t first = selector & 3;
    std::uint32_t word = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
        std::uint32_t digit = selector >> 4 * i & 15;
        if (kMode == kF4E) digit = (first + i) & 7;
        if (kMode == kB4E) digit = (first - i) & 7;
        if (kMode == kRc8) digit = first;
        if (kMode == kEcl) digit = i < first ? first : i;
        if (kMode == kEcr) digit = i < first ? i : first;
        if (kMode == kRc16) digit = (first & 1) * 2 + (i & 1);
        auto byte = static_cast<std::uint32_t>(both >> (digit & 7) * 8 & 0xff);
        if (digit & 8) byte = byte & 0x80 ? 0xff : 0;
        word |= byte << 8 * i;
    }
    return word;
}

template <typename T>
T extracted_bits(T a, std::uint32_t position, std::uint32_t length) {
    constexpr std::uint32_t kBits = 8 * sizeof(T);
    position &= 0xff, length &= 0xff;
    const std::uint32_t last =
        position + length - 1 < kBits - 1 ? position + length - 1 : kBits - 1;
    const auto word = static_cast<Unsigned<T>>(a);
    const bool fills = std::is_signed_v<T> && length != 0 && (word >> last & 1);
    Unsigned<T> result = 0;
    for (std::uint32_t i = 0; i < kBits; ++i) {
        const bool is_inside = i < length && position + i < kBits;
        const bool bit = is_inside ? word >> (position + i) & 1 : fills;
        result |= Unsigned<T>{bit} << i;
    }
    return static_cast<T>(result);
}
template <typename T>
T inserted_bits(T from, T into, std::uint32_t position, std::uint32_t length) {
    position &= 0xff, length &= 0xff;
    for (std::uint32_t i = 0; i < length && position + i < 8 * sizeof(T); ++i) {
        const T bit = T{1} << (position + i);
        into = (from >> i & 1) ? into | bit : into & ~bit;
    }
    return into;
}
// The highest bit that differs from the sign; with kIsShift, the shift that brings it to the top.
template <bool kIsShift, typename T>
std::uint32_t highest_bit(T a) {
    if (std::is_signed_v<T> && a < 0) a = static_cast<T>(~a);
    const auto word = static_cast<Unsigned<T>>(a);
    if (word == 0) return 0xffffffff;
    const auto zeros = static_cast<std::uint32_t>(std::countl_zero(word));
    return kIsShift ? zeros : 8 * sizeof(T) - 1 - zeros;
}

}  // namespace tmaasync_emulate::inline_ptx
