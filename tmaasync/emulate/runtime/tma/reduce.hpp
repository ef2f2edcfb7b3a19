// The arithmetic of reductions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "tma/reduce_op.hpp"
#include "tma/tensor_map.hpp"

namespace tmaasync_emulate {

namespace detail {

// PTX ISA: arithmetic returns this NaN for every NaN.
constexpr uint16_t kCanonicalNan16 = 0x7fff;
constexpr uint32_t kCanonicalNan32 = 0x7fffffff;

struct Float16 {
    uint16_t bits;
    static constexpr uint16_t kInfinity = 0x7c00;

    float wide() const {
        const auto sign = static_cast<uint32_t>(bits & 0x8000) << 16;
        const uint32_t magnitude = bits & 0x7fff;
        if (magnitude >= kInfinity)
            return std::bit_cast<float>(sign | (magnitude << 13 | 0x7f800000));
        // The exponents' biases differ by 112; the multiplication is exact, subnormals included.
        const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
    }

    static Float16 nearest(float value) {
        const auto raw = std::bit_cast<uint32_t>(value);
        const auto sign = static_cast<uint16_t>(raw >> 16 & 0x8000);
        const uint32_t magnitude = raw & 0x7fffffff;
        if (magnitude > 0x7f800000) return {kCanonicalNan16};
        return {static_cast<uint16_t>(sign | nearest_magnitude(magnitude))};
    }

private:
    static uint32_t nearest_magnitude(uint32_t magnitude) {
        constexpr uint32_t kOverflow = 0x477ff000;  // 65520, half way to 2**16
        constexpr uint32_t kNormal = 0x38800000;    // 2**-14
        if (magnitude >= kOverflow) return kInfinity;
        if (magnitude < kNormal) {  // the last bit of 0.5f is 2**-24, as a subnormal's is
            const float sum = std::bit_cast<float>(magnitude) + 0.5f;
            return std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
        }
        return (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    }
};

struct Bfloat16 {
    uint16_t bits;
    static constexpr uint16_t kInfinity = 0x7f80;

    float wide() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

    static Bfloat16 nearest(float value) {
        const auto raw = std::bit_cast<uint32_t>(value);
        if (value != value) return {kCanonicalNan16};
        return {static_cast<uint16_t>((raw + 0x7fff + (raw >> 16 & 1)) >> 16)};
    }
};

template <typename T>
constexpr bool kIsNarrowFloat = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// PTX ISA, add.f32 in bulk reductions on global memory: subnormals become zeros of their sign.
inline float flushed(float value) {
    const auto raw = std::bit_cast<uint32_t>(value);
    return raw & 0x7f800000 ? value : std::bit_cast<float>(raw & 0x80000000);
}

inline float sum(float old, float given) {
    const float total = flushed(flushed(old) + flushed(given));
    return total != total ? std::bit_cast<float>(kCanonicalNan32) : total;
}

inline double sum(double old, double given) {
    return old + given;
}

// Rounding the sum to 24 bits first changes nothing: 24 is more than twice 11 plus one.
template <typename T>
requires kIsNarrowFloat<T> T sum(T old, T given) {
    return T::nearest(old.wide() + given.wide());
}

// Integers wrap.
template <typename T>
requires std::is_integral_v<T> T sum(T old, T given) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(old) + static_cast<Unsigned>(given));
}

template <typename T>
bool is_less(T left, T right) {
    return left < right;
}

// PTX ISA: -0 is less than +0.
template <typename T>
requires kIsNarrowFloat<T> bool is_less(T left, T right) {
    const auto rank = [](T value) {
        return value.bits & 0x8000 ? 0x8000 - value.bits - 1 : static_cast<int>(value.bits);
    };
    return rank(left) < rank(right);
}

// PTX ISA: a number wins over NaN, and two NaNs give the canonical one.
template <typename T>
T extreme(T old, T given, bool takes_given) {
    if constexpr (kIsNarrowFloat<T>) {
        const bool old_is_nan = (old.bits & 0x7fff) > T::kInfinity;
        const bool given_is_nan = (given.bits & 0x7fff) > T::kInfinity;
        if (old_is_nan && given_is_nan) return {kCanonicalNan16};
        if (old_is_nan || given_is_nan) return old_is_nan ? given : old;
    }
    return takes_given ? given : old;
}

struct Add {
    static constexpr auto kOp = ReduceOp::kAdd;
    template <typename T>
    static T of(T old, T given) {
        return sum(old, given);
    }
};

struct Min {
    static constexpr auto kOp = ReduceOp::kMin;
    template <typename T>
    static T of(T old, T given) {
        return extreme(old, given, is_less(given, old));
    }
};

struct Max {
    static constexpr auto kOp = ReduceOp::kMax;
    template <typename T>
    static T of(T old, T given) {
        return extreme(old, given, is_less(old, given));
    }
};

struct Inc {
    static constexpr auto kOp = ReduceOp::kInc;
    static uint32_t of(uint32_t old, uint32_t given) { return old >= given ? 0 : old + 1; }
};

struct Dec {
    static constexpr auto kOp = ReduceOp::kDec;
    static uint32_t of(uint32_t old, uint32_t given) {
        return old == 0 || old > given ? given : old - 1;
    }
};

template <ReduceOp kNamed, typename Function>
struct Bitwise {
    static constexpr auto kOp = kNamed;
    template <typename T>
    static T of(T old, T given) {
        return Function{}(old, given);
    }
};
using And = Bitwise<ReduceOp::kAnd, std::bit_and<>>;
using Or = Bitwise<ReduceOp::kOr, std::bit_or<>>;
using Xor = Bitwise<ReduceOp::kXor, std::bit_xor<>>;

template <size_t kBytes>
using Word =
    std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>;

// PTX ISA: each element is reduced on its own, as by a relaxed atomic of GPU scope. Clusters that
// run on other cores may reduce into the same element.
template <typename T, typename Op>
void reduce_row(uint8_t* target, const uint8_t* source, uint32_t bytes) {
    using Bits = Word<sizeof(T)>;
    for (uint32_t at = 0; at < bytes; at += sizeof(T)) {
        auto* const place = reinterpret_cast<Bits*>(target + at);
        T given;
        std::memcpy(&given, source + at, sizeof(T));
        Bits old = __atomic_load_n(place, __ATOMIC_RELAXED);
        Bits reduced;
        do {
            reduced = std::bit_cast<Bits>(Op::of(std::bit_cast<T>(old), given));
        } while (!__atomic_compare_exchange_n(
            place, &old, reduced, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED
        ));
    }
}

using RowReduction = void (*)(uint8_t* target, const uint8_t* source, uint32_t bytes);

template <typename T, typename... Ops>
RowReduction one_of(ReduceOp op) {
    RowReduction found = nullptr;
    ((found = Ops::kOp == op ? &reduce_row<T, Ops> : found), ...);
    return found;
}

// Measured: these reductions exist; every other combination is an illegal instruction.
inline RowReduction reduction(ReduceOp op, ElementType type) {
    using enum ElementType;
    switch (type) {
        case kUint32:
            return one_of<uint32_t, Add, Min, Max, Inc, Dec, And, Or, Xor>(op);
        case kInt32:
            return one_of<int32_t, Add, Min, Max, And, Or, Xor>(op);
        case kUint64:
            return one_of<uint64_t, Add, Min, Max, And, Or, Xor>(op);
        case kInt64:
            return one_of<int64_t, Min, Max>(op);
        case kFloat16:
            return one_of<Float16, Add, Min, Max>(op);
        case kBfloat16:
            return one_of<Bfloat16, Add, Min, Max>(op);
        case kFloat32:
        case kFloat32Ftz:
        case kTfloat32:
        case kTfloat32Ftz:
            return one_of<float, Add>(op);
        case kFloat64:
            return one_of<double, Add>(op);
        case kUint8:
        case kUint16:
        case kPacked4:
        case kPacked4Gaps:
        case kPacked6Gaps:
            break;
    }
    return nullptr;
}

}  // namespace detail

}  // namespace tmaasync_emulate
