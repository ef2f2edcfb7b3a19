// Shared addresses of generic pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

namespace cuda::detail {

// The shared address of an object in the shared memory of any CTA of the cluster.
TMAASYNC_EMULATE_INLINE ::std::uint32_t shared_address(const void* pointer) {
    return static_cast<::std::uint32_t>(__cvta_generic_to_shared(pointer));
}

TMAASYNC_EMULATE_INLINE bool is_shared(const void* pointer) {
    const auto offset =
        static_cast<const ::std::uint8_t*>(pointer) - tmaasync_emulate::current_thread().window;
    return offset >= 0 && offset < ::std::ptrdiff_t{tmaasync_emulate::kWindowStride};
}

TMAASYNC_EMULATE_INLINE bool is_global(const void* pointer) {
    using namespace tmaasync_emulate;
    const Thread& thread = current_thread();
    const ::std::uint8_t* const first = thread.window - ::std::size_t{thread.rank} * kWindowStride;
    const auto offset =
        static_cast<::std::size_t>(static_cast<const ::std::uint8_t*>(pointer) - first);
    const auto address = reinterpret_cast<::std::uintptr_t>(pointer);
    return offset >= ::std::size_t{thread.ctas} * kWindowStride &&
           (address ^ stack_pointer()) >= kStackBytes;
}

}  // namespace cuda::detail
