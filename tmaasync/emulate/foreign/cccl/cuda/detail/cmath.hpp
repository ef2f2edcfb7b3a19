#pragma once

#include <tmaasync_emulate/calls.hpp>
#include <type_traits>

namespace cuda {

template <typename A, typename B>
TMAASYNC_EMULATE_INLINE constexpr ::std::common_type_t<A, B> ceil_div(A value, B divisor) {
    return value / divisor + (value % divisor != 0);
}
template <typename A, typename B>
TMAASYNC_EMULATE_INLINE constexpr ::std::common_type_t<A, B> round_up(A value, B unit) {
    return ceil_div(value, unit) * unit;
}
template <typename A, typename B>
TMAASYNC_EMULATE_INLINE constexpr ::std::common_type_t<A, B> round_down(A value, B unit) {
    return value / unit * unit;
}

}  // namespace cuda
