#pragma once

namespace tmaasync {

template <typename T, typename U>
inline constexpr bool kSameType = false;
template <typename T>
inline constexpr bool kSameType<T, T> = true;

}  // namespace tmaasync
