// Pointers with cache hints. The emulator has no caches, so they are plain pointers.
#pragma once

#include <cuda/detail/standard_names.hpp>
#include <tmaasync_emulate/calls.hpp>

namespace cuda {

class access_property {
public:
    struct shared {};
    struct global {};
    struct normal {};
    struct persisting {};
    struct streaming {};

    constexpr access_property() = default;
    template <typename Kind>
    constexpr access_property(Kind) {}
    template <typename... Hints>
    constexpr access_property(Hints...) {}
};

template <typename T, typename Property>
class annotated_ptr {
public:
    using value_type = T;

    constexpr annotated_ptr() = default;
    TMAASYNC_EMULATE_INLINE constexpr explicit annotated_ptr(T* pointer) : pointer_(pointer) {}
    template <typename Hint>
    TMAASYNC_EMULATE_INLINE constexpr annotated_ptr(T* pointer, Hint) : pointer_(pointer) {}

    TMAASYNC_EMULATE_INLINE T& operator*() const { return *pointer_; }
    TMAASYNC_EMULATE_INLINE T* operator->() const { return pointer_; }
    TMAASYNC_EMULATE_INLINE T& operator[](::std::ptrdiff_t index) const { return pointer_[index]; }
    TMAASYNC_EMULATE_INLINE constexpr explicit operator bool() const { return pointer_ != nullptr; }
    TMAASYNC_EMULATE_INLINE constexpr T* get() const { return pointer_; }

private:
    T* pointer_ = nullptr;
};

template <typename T, typename Property>
TMAASYNC_EMULATE_INLINE T* associate_access_property(T* pointer, Property) {
    return pointer;
}
template <typename Shape, typename Property>
TMAASYNC_EMULATE_INLINE void apply_access_property(const volatile void*, Shape, Property) {}
TMAASYNC_EMULATE_INLINE void discard_memory(volatile void*, ::std::size_t) {}

}  // namespace cuda
