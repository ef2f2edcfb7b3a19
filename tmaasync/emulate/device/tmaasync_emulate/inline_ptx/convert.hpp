// cvt of inline PTX: between integers, floats, and the packed types of the tensor cores.
#pragma once

#include <tmaasync_emulate/inline_ptx/floats.hpp>

namespace tmaasync_emulate::inline_ptx {

// --- narrow floats -------------------------------------------------------------------------------

// The largest exponent holds infinity and NaN; or numbers, and its largest mantissa is NaN; or only
// numbers.
enum class Top { kInfinity, kNan, kNumbers };

// A float with this many bits of exponent and mantissa.
template <int kExponent, int kMantissa, Top kTop>
struct NarrowFloat {
    static constexpr bool kHasInfinity = kTop == Top::kInfinity;
    // Distance in a register of two: 6 bits are in a byte.
    static constexpr int kPackedBits = std::bit_ceil(1u + kExponent + kMantissa);
    static constexpr int kBias = (1 << (kExponent - 1)) - 1;
    static constexpr std::uint32_t kSign = 1u << (kExponent + kMantissa);
    static constexpr std::uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
    static constexpr std::uint32_t kLargest = kHasInfinity        ? kInfinity - 1
                                              : kTop == Top::kNan ? kSign - 2
                                                                  : kSign - 1;
    static constexpr std::uint32_t kNan = kSign - 1;  // without NaN, the largest number

    // The bits of a value, rounded once. Stochastic rounding (kRs) adds a random part of a unit
    // below 1 and rounds towards zero.
    static std::uint32_t of(double value, Round round, bool saturates, double random = 0) {
        const std::uint32_t sign = std::signbit(value) ? kSign : 0;
        if (value != value) return kNan;
        const double size = std::fabs(value);
        if (std::isinf(size))
            return sign | (saturates || !kHasInfinity ? over(saturates) : kInfinity);
        int exponent = size == 0 ? -kBias : std::ilogb(size);
        if (exponent < 1 - kBias) exponent = 1 - kBias;
        const double unit = std::ldexp(1.0, exponent - kMantissa);
        const double scaled = size / unit;  // exact
        double whole = std::floor(scaled);
        const double rest = scaled - whole;
        const bool is_negative = sign != 0;
        bool up = rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) == 1);
        if (round == Round::kRz) up = false;
        if (round == Round::kRs) up = rest + random >= 1;
        if (round == Round::kRna) up = rest >= 0.5;
        if (round == Round::kRm) up = is_negative && rest > 0;
        if (round == Round::kRp) up = !is_negative && rest > 0;
        whole += up;
        const auto digits = static_cast<std::uint32_t>(whole);
        // The hidden bit carries into the exponent, even if rounding produced it.
        const std::uint32_t base = static_cast<std::uint32_t>(exponent + kBias - 1) << kMantissa;
        const std::uint64_t word = std::uint64_t{base} + digits;
        if (word > kLargest) {
            const Round towards_zero = is_negative ? Round::kRp : Round::kRm;
            const bool cuts = round == Round::kRz || round == towards_zero;
            if (cuts && kHasInfinity) return sign | kLargest;
            return sign | over(saturates);
        }
        return sign | static_cast<std::uint32_t>(word);
    }

    static std::uint32_t over(bool saturates) {
        return saturates ? kLargest : kHasInfinity ? kInfinity : kNan;
    }

    static float to(std::uint32_t bits) {
        const float sign = bits & kSign ? -1.0f : 1.0f;
        const std::uint32_t size = bits & (kSign - 1);
        if (kHasInfinity ? size > kInfinity : size > kLargest) return nan_of<float>();
        if (kHasInfinity && size == kInfinity) return sign * std::numeric_limits<float>::infinity();
        const auto exponent = static_cast<int>(size >> kMantissa);
        const auto mantissa = static_cast<float>(size & ((1u << kMantissa) - 1));
        const float hidden = exponent ? static_cast<float>(1 << kMantissa) : 0.0f;
        return sign * std::ldexp(hidden + mantissa, (exponent ? exponent : 1) - kBias - kMantissa);
    }
};

using HalfBits = NarrowFloat<5, 10, Top::kInfinity>;
using BfloatBits = NarrowFloat<8, 7, Top::kInfinity>;
using TfloatBits = NarrowFloat<8, 10, Top::kInfinity>;
using E4M3Bits = NarrowFloat<4, 3, Top::kNan>;
using E5M2Bits = NarrowFloat<5, 2, Top::kInfinity>;
using E2M1Bits = NarrowFloat<2, 1, Top::kNumbers>;
using E2M3Bits = NarrowFloat<2, 3, Top::kNumbers>;
using E3M2Bits = NarrowFloat<3, 2, Top::kNumbers>;

// ue8m0, a power of two from 2^-127 to 2^127, or NaN. It drops the sign.
struct E8M0Bits {
    static constexpr int kPackedBits = 8;
    static constexpr std::uint32_t kLargest = 0xfe, kNan = 0xff;

    static std::uint32_t of(double value, Round round, bool saturates) {
        const double size = std::fabs(value);
        if (value != value) return kNan;
        if (size < 0x1p-127) return 0;
        const int exponent = std::isinf(size) ? 128 : std::ilogb(size);
        const bool up =
            round == Round::kRp && !std::isinf(size) && size > std::ldexp(1.0, exponent);
        const auto word = static_cast<std::uint32_t>(exponent + 127 + up);
        return word <= kLargest ? word : saturates ? kLargest : kNan;
    }

    static float to(std::uint32_t word) {
        return word == kNan ? nan_of<float>() : std::ldexp(1.0f, static_cast<int>(word) - 127);
    }
};

template <bool kRelu>
double positive_part(double value) {
    return kRelu && !(value > 0) && value == value ? 0 : value;
}
template <typename Narrow, Round kRound, bool kRelu, bool kSaturates>
std::uint32_t narrow_bits(double value) {
    return Narrow::of(positive_part<kRelu>(value), kRound, kSaturates);
}

// cvt.d.f32 with two operands: the first operand becomes the upper half.
template <typename Narrow, Round kRound, bool kRelu, bool kSaturates>
std::uint32_t packed(float high, float low) {
    constexpr int kBits = Narrow::kPackedBits;
    return narrow_bits<Narrow, kRound, kRelu, kSaturates>(high) << kBits |
           narrow_bits<Narrow, kRound, kRelu, kSaturates>(low);
}
// cvt.rs: each value has its own random bits, the first operand the uppermost. Two values have
// 16 bits each, of which f16 takes 13, and four values 8 each.
template <typename Narrow, bool kRelu, bool kSaturates, typename... Values>
std::uint32_t packed_stochastically(std::uint32_t bits, Values... values) {
    constexpr int kField = 32 / sizeof...(Values);
    constexpr int kRandom = std::is_same_v<Narrow, HalfBits> ? 13 : kField;
    std::uint32_t words = 0;
    int shift = 32;
    const auto append = [&](float value) {
        shift -= kField;
        const double random = bits >> shift & ((1u << kRandom) - 1);
        words = words << Narrow::kPackedBits | Narrow::of(
                                                   positive_part<kRelu>(value), Round::kRs,
                                                   kSaturates, std::ldexp(random, -kRandom)
                                               );
    };
    (append(values), ...);
    return words;
}
template <typename Narrow, bool kRelu>
std::uint32_t packed_halves(Pair<F16> halves) {
    return packed<Narrow, Round::kRn, kRelu, true>(
        static_cast<float>(halves.high), static_cast<float>(halves.low)
    );
}
template <typename Narrow, bool kRelu>
Pair<F16> unpacked_halves(std::uint32_t both) {
    constexpr std::uint32_t kMask = (1u << Narrow::kPackedBits) - 1;
    const auto half = [](std::uint32_t word) {
        return rectified<kRelu>(canonical(static_cast<F16>(Narrow::to(word))));
    };
    return {half(both & kMask), half(both >> Narrow::kPackedBits & kMask)};
}
inline std::uint32_t packed_scales(Pair<BF16> values, Round round, bool saturates) {
    return E8M0Bits::of(values.high, round, saturates) << 8 |
           E8M0Bits::of(values.low, round, saturates);
}
inline Pair<BF16> unpacked_scales(std::uint32_t both) {
    return {BF16(E8M0Bits::to(both & 0xff)), BF16(E8M0Bits::to(both >> 8 & 0xff))};
}
// tf32 in the upper bits of a float.
template <Round kRound, bool kRelu, bool kSaturates>
std::uint32_t tfloat_of(float value) {
    if (value != value) return 0x7fffffff;
    const std::uint32_t bits = narrow_bits<TfloatBits, kRound, kRelu, kSaturates>(value);
    return bits << 13;
}

// --- cvt of one value ----------------------------------------------------------------------------

template <Round kRound, typename From>
From made_whole(From value) {
    return computed<kRound, From>([](From x) { return std::nearbyint(x); }, value);
}
// Only .rni, .rzi, .rmi and .rpi ask for a whole number of a conversion between floats.
template <Round kRound, typename From>
From made_whole_if_asked(From value) {
    if constexpr (kRound >= Round::kRni && kRound <= Round::kRpi) return made_whole<kRound>(value);
    return value;
}

// Integer to integer: truncates, or clamps to the range with .sat.
template <bool kSat, typename To, typename From>
To whole_to_whole(From value) {
    if constexpr (kSat) {
        using Both = __int128;
        const Both low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
        const Both wide = value;
        return static_cast<To>(wide < low ? low : wide > high ? high : wide);
    }
    return static_cast<To>(value);
}

// cvt.pack: the first operand becomes the upper half.
template <typename To>
std::uint32_t two_packed(std::int32_t high, std::int32_t low) {
    const auto half = [](std::int32_t value) {
        return std::uint32_t{static_cast<std::uint16_t>(whole_to_whole<true, To>(value))};
    };
    return half(high) << 16 | half(low);
}

template <typename To>
std::uint32_t four_packed(std::int32_t high, std::int32_t low, std::uint32_t upper) {
    const auto byte = [](std::int32_t value) {
        return std::uint32_t{static_cast<std::uint8_t>(whole_to_whole<true, To>(value))};
    };
    return upper << 16 | byte(high) << 8 | byte(low);
}

template <Round kRound, bool kFtz, bool kSat, bool kRelu, typename To, typename From>
To converted(From value) {
    if constexpr (!kIsFloat<From> && !kIsFloat<To>) {
        return whole_to_whole<kSat, To>(value);
    } else if constexpr (!kIsFloat<To>) {
        if constexpr (std::is_same_v<From, double>) {
            return saturated<To>(made_whole<kRound>(value));
        } else {
            return saturated<To>(made_whole<kRound>(flushed<kFtz>(static_cast<float>(value))));
        }
    } else if constexpr (std::is_same_v<To, F16> || std::is_same_v<To, BF16>) {
        using Narrow = std::conditional_t<std::is_same_v<To, F16>, HalfBits, BfloatBits>;
        double wide;
        if constexpr (kIsFloat<From>) {
            using Wide = std::conditional_t<std::is_same_v<From, double>, double, float>;
            wide = made_whole_if_asked<kRound>(flushed<kFtz>(static_cast<Wide>(value)));
        } else {
            wide = rounded<FE_TOWARDZERO>([](From x) { return static_cast<double>(x); }, value);
        }
        const auto bits =
            static_cast<std::uint16_t>(narrow_bits<Narrow, kRound, kRelu, false>(wide));
        return limited<kSat>(std::bit_cast<To>(bits));
    } else if constexpr (!kIsFloat<From>) {
        return computed<kRound, To>([](From x) { return static_cast<To>(x); }, value);
    } else {
        using Wide = std::conditional_t<std::is_same_v<From, double>, double, float>;
        const Wide wide = made_whole_if_asked<kRound>(flushed<kFtz>(static_cast<Wide>(value)));
        const To result = computed<kRound, To>([](Wide x) { return static_cast<To>(x); }, wide);
        return canonical(limited<kSat>(flushed<kFtz>(result)));
    }
}

}  // namespace tmaasync_emulate::inline_ptx
