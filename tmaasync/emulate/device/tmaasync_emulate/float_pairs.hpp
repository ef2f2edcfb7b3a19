// CUDA's functions of pairs of floats (__fadd2_rn and its kin), which chips from 10.0 on have.
#pragma once

#include <vector_functions.h>
#include <vector_types.h>

#include <tmaasync_emulate/rounding.hpp>

#if defined(TMAASYNC_EMULATE_WITHOUT_F32X2)
// Declared, because templates of libraries name them for GPUs that have them.
#define TMAASYNC_EMULATE_PAIR(NAME, X, Y, ...) \
    [[gnu::error(#NAME " " TMAASYNC_EMULATE_WHY_NOT_F32X2)]] float2 NAME(__VA_ARGS__);
#else
#define TMAASYNC_EMULATE_PAIR(NAME, X, Y, ...) \
    inline float2 NAME(__VA_ARGS__) {          \
        return make_float2(X, Y);              \
    }
#endif

#define TMAASYNC_EMULATE_PAIRS(MODE)                                                          \
    TMAASYNC_EMULATE_PAIR(                                                                    \
        __fadd2_##MODE, __fadd_##MODE(a.x, b.x), __fadd_##MODE(a.y, b.y), float2 a, float2 b  \
    )                                                                                         \
    TMAASYNC_EMULATE_PAIR(                                                                    \
        __fmul2_##MODE, __fmul_##MODE(a.x, b.x), __fmul_##MODE(a.y, b.y), float2 a, float2 b  \
    )                                                                                         \
    TMAASYNC_EMULATE_PAIR(                                                                    \
        __ffma2_##MODE, __fmaf_##MODE(a.x, b.x, c.x), __fmaf_##MODE(a.y, b.y, c.y), float2 a, \
        float2 b, float2 c                                                                    \
    )
TMAASYNC_EMULATE_PAIRS(rn)
TMAASYNC_EMULATE_PAIRS(rz)
TMAASYNC_EMULATE_PAIRS(rd)
TMAASYNC_EMULATE_PAIRS(ru)
#undef TMAASYNC_EMULATE_PAIRS
#undef TMAASYNC_EMULATE_PAIR
