// The operations of reduce and scan.
#pragma once

#include <tmaasync_emulate/calls.hpp>

namespace cooperative_groups {

#define TMAASYNC_EMULATE_OPERATOR(NAME, RESULT)                                               \
    template <typename T = void>                                                              \
    struct NAME {                                                                             \
        TMAASYNC_EMULATE_INLINE T operator()(const T& a, const T& b) const { return RESULT; } \
    };                                                                                        \
    template <>                                                                               \
    struct NAME<void> {                                                                       \
        template <typename T>                                                                 \
        TMAASYNC_EMULATE_INLINE T operator()(const T& a, const T& b) const {                  \
            return RESULT;                                                                    \
        }                                                                                     \
    };
TMAASYNC_EMULATE_OPERATOR(plus, a + b)
TMAASYNC_EMULATE_OPERATOR(less, b < a ? b : a)
TMAASYNC_EMULATE_OPERATOR(greater, a < b ? b : a)
TMAASYNC_EMULATE_OPERATOR(bit_and, a& b)
TMAASYNC_EMULATE_OPERATOR(bit_or, a | b)
TMAASYNC_EMULATE_OPERATOR(bit_xor, a ^ b)
#undef TMAASYNC_EMULATE_OPERATOR

}  // namespace cooperative_groups
