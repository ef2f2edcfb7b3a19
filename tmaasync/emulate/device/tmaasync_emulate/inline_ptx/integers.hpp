// Integers of inline PTX (PTX ISA: "Integer Arithmetic Instructions", "Extended-Precision Integer
// Arithmetic Instructions", "Logic and Shift Instructions").
#pragma once

#include <tmaasync_emulate/inline_ptx/registers.hpp>
#include <tmaasync_emulate/intrinsics.hpp>
#include <utility>

namespace tmaasync_emulate::inline_ptx {

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
// By zero the value is unspecified, and no trap (PTX ISA, "div"): Triton divides speculatively.
template <typename T>
T whole_quotient(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
        if (b == -1) return whole_difference(T{0}, a);
    }
    return static_cast<T>(a / b);
}
template <typename T>
T remainder_of(T a, T b) {
    if (b == 0) return a;
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
// vabsdiff: the distances of the halves or bytes of two words, or their sum with c.
template <int kParts, bool kSum>
std::uint32_t part_distances(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    constexpr int kBits = 32 / kParts;
    constexpr std::uint32_t kMask = (1u << kBits) - 1;
    std::uint32_t result = kSum ? c : 0;
    for (int shift = 0; shift < 32; shift += kBits) {
        const std::uint32_t x = a >> shift & kMask, y = b >> shift & kMask;
        const std::uint32_t distance = x < y ? y - x : x - y;
        result += kSum ? distance : distance << shift;
    }
    return result;
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

// --- bits
// -----------------------------------------------------------------------------------------

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
