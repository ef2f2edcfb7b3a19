// Changes of an atomic object by a group's result.
#pragma once

#include <cuda/detail/atomic.hpp>

namespace cooperative_groups::detail {

// Returns the value before the change.
template <typename Target, typename T, typename Operation>
TMAASYNC_EMULATE_INLINE T update(Target& target, T value, Operation operation) {
    T old = target.load(cuda::memory_order_relaxed);
    while (!target.compare_exchange_weak(
        old, operation(old, value), cuda::memory_order_relaxed, cuda::memory_order_relaxed
    )) {}
    return old;
}

}  // namespace cooperative_groups::detail
