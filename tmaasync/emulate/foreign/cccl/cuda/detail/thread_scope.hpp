#pragma once

#include <cuda/detail/standard_names.hpp>
#include <tmaasync_emulate/calls.hpp>

namespace cuda {

// The set of threads for which an operation is atomic and ordered.
enum thread_scope {
    thread_scope_system = 0,
    thread_scope_device = 1,
    thread_scope_block = 2,
    thread_scope_thread = 10,
};

}  // namespace cuda

namespace cuda::detail {

// fence.acq_rel with a scope.
template <thread_scope kScope>
TMAASYNC_EMULATE_INLINE void fence() {
    using tmaasync_emulate::Scope;
    if constexpr (kScope == thread_scope_block) {
        tmaasync_emulate::fence(Scope::kCta);
    } else if constexpr (kScope == thread_scope_device) {
        tmaasync_emulate::fence(Scope::kGpu);
    } else if constexpr (kScope == thread_scope_system) {
        tmaasync_emulate::fence(Scope::kSystem);
    }
}

}  // namespace cuda::detail
