// Comparisons of inline PTX (PTX ISA: "Comparison and Selection Instructions").
#pragma once

#include <tmaasync_emulate/inline_ptx/floats.hpp>

namespace tmaasync_emulate::inline_ptx {

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

}  // namespace tmaasync_emulate::inline_ptx
