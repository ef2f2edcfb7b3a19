// The reduction of tcgen05.ld.red over the words that a thread has loaded.
#pragma once

#include <tmaasync_emulate/tcgen05_calls.hpp>

namespace tmaasync_emulate {

enum class Tcgen05Reduced : uint8_t { kU32, kS32, kF32 };

inline float tcgen05_float(uint32_t word, bool is_absolute) {
    return __builtin_bit_cast(float, is_absolute ? word & 0x7fffffff : word);
}

// True if `b` takes the place of `a`. A NaN does so if `keeps_nan`, and is no number otherwise.
inline bool tcgen05_is_ahead(float b, float a, bool is_max, bool keeps_nan) {
    if (b != b) return keeps_nan;
    if (a != a) return !keeps_nan;
    if (a == b)
        return __builtin_signbit(a) != __builtin_signbit(b) && bool(__builtin_signbit(a)) == is_max;
    return is_max ? b > a : b < a;
}

inline uint32_t tcgen05_reduced(
    Tcgen05Reduced type,
    bool is_max,
    bool is_absolute,
    bool keeps_nan,
    const uint32_t* words,
    uint32_t count
) {
    uint32_t found = words[0];
    for (uint32_t i = 1; i < count; ++i) {
        const uint32_t next = words[i];
        bool is_ahead = is_max ? next > found : next < found;
        if (type == Tcgen05Reduced::kS32) {
            const auto a = static_cast<int32_t>(found), b = static_cast<int32_t>(next);
            is_ahead = is_max ? b > a : b < a;
        }
        if (type == Tcgen05Reduced::kF32) {
            is_ahead = tcgen05_is_ahead(
                tcgen05_float(next, is_absolute), tcgen05_float(found, is_absolute), is_max,
                keeps_nan
            );
        }
        if (is_ahead) found = next;
    }
    if (type != Tcgen05Reduced::kF32) return found;
    const float value = tcgen05_float(found, is_absolute);
    return value != value ? 0x7fffffff : __builtin_bit_cast(uint32_t, value);
}

}  // namespace tmaasync_emulate
