// Registers of inline PTX: bits, which every instruction reads as the type that it names.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <tmaasync_emulate/calls.hpp>
#include <tuple>
#include <type_traits>

namespace tmaasync_emulate::inline_ptx {

// The bits of a register of this many bytes.
template <std::size_t kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
    using Type = std::uint8_t;
};
template <>
struct BitsOf<2> {
    using Type = std::uint16_t;
};
template <>
struct BitsOf<4> {
    using Type = std::uint32_t;
};
template <>
struct BitsOf<8> {
    using Type = std::uint64_t;
};
template <>
struct BitsOf<16> {
    using Type = unsigned __int128;
};
template <std::size_t kBytes>
using Bits = typename BitsOf<kBytes>::Type;

using F16 = _Float16;

// bfloat16, the upper half of a float.
struct BF16 {
    std::uint16_t bits;

    BF16() = default;
    explicit constexpr BF16(float value) : bits(rounded(value)) {}
    constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

private:
    static constexpr std::uint16_t rounded(float value) {
        const auto word = std::bit_cast<std::uint32_t>(value);
        if (value != value) return 0x7fff;
        return static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
    }
};

template <typename T>
struct Pair {
    T low, high;
};

// --- operands of an asm statement ----------------------------------------------------------------

template <char kLetter>
constexpr std::size_t kLetterBytes = kLetter == 'h'   ? 2
                                     : kLetter == 'r' ? 4
                                     : kLetter == 'f' ? 4
                                     : kLetter == 'q' ? 16
                                                      : 8;

// The bits of an operand with this constraint.
template <char kLetter, typename T>
TMAASYNC_EMULATE_INLINE auto operand(const T& value) {
    using Held = std::decay_t<T>;
    static_assert(
        sizeof(Held) == kLetterBytes<kLetter>,
        "the size of an asm operand fits its constraint: h has 16 bits, r and f 32, l and d "
        "64, q 128"
    );
    const Held held = value;
    return std::bit_cast<Bits<sizeof(Held)>>(held);
}

template <typename T>
constexpr long long constant(T value) {
    return static_cast<long long>(value);
}

template <char kLetter, typename T, typename Word>
TMAASYNC_EMULATE_INLINE void give_back(T& target, Word word) {
    using Held = std::remove_cv_t<T>;
    static_assert(
        sizeof(Held) == kLetterBytes<kLetter>,
        "the size of an asm operand fits its constraint: h has 16 bits, r and f 32, l and d "
        "64, q 128"
    );
    target = std::bit_cast<Held>(word);
}

// --- as a type -----------------------------------------------------------------------------------

// The low bits of a register.
template <typename T, typename Word>
TMAASYNC_EMULATE_INLINE constexpr T as(Word word) {
    if constexpr (std::is_same_v<T, bool> || std::is_same_v<Word, bool>) {
        return static_cast<T>(word);
    } else {
        return std::bit_cast<T>(static_cast<Bits<sizeof(T)>>(word));
    }
}

// Sets a register. If it is wider, an integer fills the upper bits too.
template <typename T, typename Word>
TMAASYNC_EMULATE_INLINE constexpr void set(Word& target, std::type_identity_t<T> value) {
    if constexpr (std::is_same_v<Word, bool> || std::is_integral_v<T>) {
        target = static_cast<Word>(value);
    } else {
        target = static_cast<Word>(std::bit_cast<Bits<sizeof(T)>>(value));
    }
}

// --- vectors, as in mov.b64 {a, b}, c ------------------------------------------------------------

// The first part is the lowest.
template <typename... Words>
TMAASYNC_EMULATE_INLINE constexpr auto joined_parts(Words... words) {
    Bits<(sizeof(Words) + ...)> whole = 0;
    int shift = 0;
    ((whole |= static_cast<decltype(whole)>(words) << shift, shift += 8 * sizeof(Words)), ...);
    return whole;
}

template <typename... Words>
struct Parts {
    std::tuple<Words&...> words;

    explicit Parts(Words&... words) : words(words...) {}
};

template <typename T, typename... Words>
TMAASYNC_EMULATE_INLINE void set(Parts<Words...> parts, std::type_identity_t<T> value) {
    const auto whole = std::bit_cast<Bits<sizeof(T)>>(value);
    std::apply(
        [&](Words&... words) {
            int shift = 0;
            ((words = static_cast<Words>(whole >> shift), shift += 8 * sizeof(Words)), ...);
        },
        parts.words
    );
}

}  // namespace tmaasync_emulate::inline_ptx

// The name that translated statements use: one word, which no namespace of the author hides.
namespace tmaasync_ptx = tmaasync_emulate::inline_ptx;
