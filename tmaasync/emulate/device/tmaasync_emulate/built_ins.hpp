// Functions that <cmath> calls by the built-in of their name.
#pragma once

#include <cmath>
#include <tmaasync_emulate/calls.hpp>
#include <tmaasync_emulate/conversions.hpp>
#include <tmaasync_emulate/special_functions.hpp>

namespace tmaasync_emulate {

// NaN only of two NaNs, signalling ones too; -0 is below 0.
template <bool kIsMax, typename T>
TMAASYNC_EMULATE_INLINE T extreme(T a, T b) {
    if (a != a || b != b) return a != a ? b : a;
    if (a == b) return std::signbit(a) == kIsMax ? b : a;
    return (a < b) == kIsMax ? b : a;
}

}  // namespace tmaasync_emulate

// A kernel's calls are inlined, or lead to the functions that linked_into_kernels.cpp defines:
// otherwise every kernel would compile all of them.
#if defined(TMAASYNC_EMULATE_DEFINES_BUILT_INS)
#define TMAASYNC_EMULATE_BUILT_IN_FUNCTION __attribute__((visibility("hidden"), used))
#else
#define TMAASYNC_EMULATE_BUILT_IN_FUNCTION inline __attribute__((always_inline, gnu_inline))
#endif

// The name in the object file is the built-in's too, so std::exp2 of a float is this exp2f.
#define TMAASYNC_EMULATE_BUILT_IN(RESULT, NAME, PARAMETERS, VALUE)                  \
    extern "C" RESULT NAME PARAMETERS noexcept __asm__("tmaasync_emulate_" #NAME);  \
    extern "C" TMAASYNC_EMULATE_BUILT_IN_FUNCTION RESULT NAME PARAMETERS noexcept { \
        using namespace ::tmaasync_emulate;                                         \
        return VALUE;                                                               \
    }
#define TMAASYNC_EMULATE_OF_FLOATS(T, F)                                                 \
    TMAASYNC_EMULATE_BUILT_IN(T, fmax##F, (T x, T y), (extreme<true>(x, y)))             \
    TMAASYNC_EMULATE_BUILT_IN(T, fmin##F, (T x, T y), (extreme<false>(x, y)))            \
    /* Out of range they saturate. */                                                    \
    TMAASYNC_EMULATE_BUILT_IN(long, lrint##F, (T x), saturated<long>(std::nearbyint(x))) \
    TMAASYNC_EMULATE_BUILT_IN(                                                           \
        long long, llrint##F, (T x), saturated<long long>(std::nearbyint(x))             \
    )                                                                                    \
    TMAASYNC_EMULATE_BUILT_IN(long, lround##F, (T x), saturated<long>(std::round(x)))    \
    TMAASYNC_EMULATE_BUILT_IN(long long, llround##F, (T x), saturated<long long>(std::round(x)))
TMAASYNC_EMULATE_OF_FLOATS(double, )
TMAASYNC_EMULATE_OF_FLOATS(float, f)
TMAASYNC_EMULATE_BUILT_IN(float, exp2f, (float x), special::ex2_approx<false>(x))
