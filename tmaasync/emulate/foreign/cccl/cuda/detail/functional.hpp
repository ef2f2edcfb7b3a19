#pragma once

#include <tmaasync_emulate/calls.hpp>
#include <type_traits>

namespace cuda {

template <typename T = void>
struct minimum {
    template <typename A, typename B>
    TMAASYNC_EMULATE_INLINE constexpr ::std::common_type_t<A, B> operator()(A a, B b) const {
        return b < a ? b : a;
    }
};
template <typename T = void>
struct maximum {
    template <typename A, typename B>
    TMAASYNC_EMULATE_INLINE constexpr ::std::common_type_t<A, B> operator()(A a, B b) const {
        return a < b ? b : a;
    }
};

template <typename Result, typename Function>
TMAASYNC_EMULATE_INLINE Function proclaim_return_type(Function function) {
    return function;
}

}  // namespace cuda
