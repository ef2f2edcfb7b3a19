#pragma once

// Traits that a kernel may specialise for its own types in cuda::std, as CuTe does. They are
// templates of cuda::std itself, and not names of the C++ library's.
#include <tuple>
#include <type_traits>

namespace cuda::std {

template <class T>
struct tuple_size;
template <class T>
requires requires {
    ::std::tuple_size<T>::value;
}
struct tuple_size<T> : ::std::tuple_size<T> {};

template <::std::size_t I, class T>
struct tuple_element;
template <::std::size_t I, class T>
requires requires {
    typename ::std::tuple_element<I, T>::type;
}
struct tuple_element<I, T> : ::std::tuple_element<I, T> {};

template <class T>
struct is_reference : ::std::is_reference<T> {};

template <class T>
inline constexpr ::std::size_t tuple_size_v = tuple_size<T>::value;
template <::std::size_t I, class T>
using tuple_element_t = typename tuple_element<I, T>::type;
template <class T>
inline constexpr bool is_reference_v = is_reference<T>::value;

}  // namespace cuda::std
