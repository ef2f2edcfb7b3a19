// Floats of inline PTX (PTX ISA: "Floating Point Instructions", "Half Precision Floating Point
// Instructions").
#pragma once

#include <cmath>
#include <tmaasync_emulate/inline_ptx/registers.hpp>
#include <tmaasync_emulate/intrinsics.hpp>
#include <tmaasync_emulate/special_functions.hpp>

namespace tmaasync_emulate::inline_ptx {

template <typename T>
constexpr bool kIsPair = false;
template <typename T>
constexpr bool kIsPair<Pair<T>> = true;
template <typename T>
concept Single = !kIsPair<T>;

enum class Round { kNone, kRn, kRz, kRm, kRp, kRni, kRzi, kRmi, kRpi, kRna, kRs };

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

// True without a modifier: most of a kernel's instructions, which compile in less time so.
template <Round kRound, typename T, bool... kModifiers>
constexpr bool kIsPlain =
    std::is_floating_point_v<T> && kMode<kRound> == FE_TONEAREST && !(kModifiers || ...);

// add, sub, mul and fma of one element, with their modifiers.
template <Round kRound, bool kFtz, bool kSat, bool kRelu, Single T>
T fused(T a, T b, T c) {
    if constexpr (kIsPlain<kRound, T, kFtz, kSat, kRelu>) return canonical(std::fma(a, b, c));
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
    if constexpr (kIsPlain<kRound, T, kFtz, kSat>) return canonical(a + b);
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
    if constexpr (kIsPlain<kRound, T, kFtz, kSat>) return canonical(a * b);
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

// With .abs, the least or the greatest magnitude.
template <bool kIsMax, bool kFtz, bool kKeepsNan, bool kAbs>
float extreme_of_three(float a, float b, float c) {
    if constexpr (kAbs) a = std::fabs(a), b = std::fabs(b), c = std::fabs(c);
    const float first = extreme<kIsMax, kFtz, kKeepsNan, false>(a, b);
    return extreme<kIsMax, kFtz, kKeepsNan, false>(first, c);
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

// --- approximations: the special function unit; sine and cosine of the C library -----------------

// The unit cuts off what halves do not hold.
template <Single T>
T toward_zero(float value) {
    if constexpr (std::is_same_v<T, BF16>) {
        return std::bit_cast<BF16>(
            static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)
        );
    } else {
        const T nearest = static_cast<T>(value);
        const float size = std::fabs(value);
        if (!(std::fabs(static_cast<float>(nearest)) > size && size < 0x1p16f)) return nearest;
        return std::bit_cast<F16>(
            static_cast<std::uint16_t>(std::bit_cast<std::uint16_t>(nearest) - 1)
        );
    }
}

template <Single T, typename Compute>
T approximated(Compute compute, T value) {
    if constexpr (std::is_same_v<T, float>) {
        return canonical(compute(value));
    } else {
        return canonical(toward_zero<T>(compute(static_cast<float>(value))));
    }
}
template <typename T, typename Compute>
Pair<T> approximated(Compute compute, Pair<T> value) {
    return {approximated(compute, value.low), approximated(compute, value.high)};
}

#define TMAASYNC_EMULATE_APPROXIMATION(NAME, RESULT)                       \
    template <bool kFtz, typename T>                                       \
    T NAME(T value) {                                                      \
        return approximated([](float x) { return float(RESULT); }, value); \
    }
TMAASYNC_EMULATE_APPROXIMATION(power_of_two, special::ex2_approx<kFtz>(x))
TMAASYNC_EMULATE_APPROXIMATION(log_of_two, special::lg2_approx<kFtz>(x))
TMAASYNC_EMULATE_APPROXIMATION(sine, flushed<kFtz>(std::sin(flushed<kFtz>(x))))
TMAASYNC_EMULATE_APPROXIMATION(cosine, flushed<kFtz>(std::cos(flushed<kFtz>(x))))
TMAASYNC_EMULATE_APPROXIMATION(hyperbolic_tangent, special::tanh(x))
#undef TMAASYNC_EMULATE_APPROXIMATION

template <Round kRound, bool kFtz, typename T>
T reciprocal(T value) {
    if constexpr (kRound == Round::kNone && std::is_same_v<T, float>) {
        return special::rcp_approx<kFtz>(value);
    } else {
        return quotient<kRound, kFtz>(T{1}, value);
    }
}
template <bool kIsFull, bool kFtz>
float approximate_quotient(float a, float b) {
    return canonical(special::quotient<kIsFull, kFtz>(a, b));
}
template <Round kRound, bool kFtz, typename T>
T root(T value) {
    value = flushed<kFtz>(value);
    return canonical(computed<kRound, T>([](T x) { return std::sqrt(x); }, value));
}
template <bool kFtz, typename T>
T reciprocal_root(T value) {
    if constexpr (std::is_same_v<T, float>) return special::rsqrt_approx<kFtz>(value);
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

}  // namespace tmaasync_emulate::inline_ptx
