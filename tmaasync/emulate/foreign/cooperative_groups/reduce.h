// Reductions over a group of lanes.
#pragma once

#include <cooperative_groups.h>

#include <cooperative_groups/detail/operators.hpp>
#include <cooperative_groups/detail/update.hpp>
#include <type_traits>

namespace cooperative_groups {

namespace detail {

template <typename T, typename Group, typename Operation>
TMAASYNC_EMULATE_INLINE T reduced(const Group& group, T value, Operation operation) {
    const unsigned rank = group.thread_rank(), size = group.size();
    for (unsigned delta = 1; delta < size; delta *= 2) {
        const T other = group.shfl_down(value, delta);
        if (rank % (2 * delta) == 0 && rank + delta < size) value = operation(value, other);
    }
    return group.shfl(value, 0);
}
// Reduces in the chip's order, on which the rounding of floats depends.
template <typename T, unsigned kSize, typename Parent, typename Operation>
TMAASYNC_EMULATE_INLINE T
reduced(const thread_block_tile<kSize, Parent>& tile, T value, Operation operation) {
    for (unsigned lanes = kSize / 2; lanes > 0; lanes /= 2) {
        value = operation(value, tile.shfl_xor(value, lanes));
    }
    return value;
}

}  // namespace detail

// Every thread gets the result.
template <typename Group, typename T, typename Operation>
TMAASYNC_EMULATE_INLINE auto reduce(const Group& group, T value, Operation operation) {
    using Result = ::std::decay_t<decltype(operation(value, value))>;
    return detail::reduced<Result>(group, Result(value), operation);
}

template <typename Group, typename T, cuda::thread_scope kScope, typename V, typename Operation>
TMAASYNC_EMULATE_INLINE void reduce_update_async(
    const Group& group, cuda::atomic<T, kScope>& target, V value, Operation operation
) {
    const T total = reduce(group, static_cast<T>(value), operation);
    if (group.thread_rank() == 0) detail::update(target, total, operation);
}
template <typename Group, typename T, cuda::thread_scope kScope, typename V, typename Operation>
TMAASYNC_EMULATE_INLINE void reduce_update_async(
    const Group& group, const cuda::atomic_ref<T, kScope>& target, V value, Operation operation
) {
    const T total = reduce(group, static_cast<T>(value), operation);
    if (group.thread_rank() == 0) detail::update(target, total, operation);
}

template <typename Group, typename T, cuda::thread_scope kScope, typename V, typename Operation>
TMAASYNC_EMULATE_INLINE void reduce_store_async(
    const Group& group, cuda::atomic<T, kScope>& target, V value, Operation operation
) {
    const T total = reduce(group, static_cast<T>(value), operation);
    if (group.thread_rank() == 0) target.store(total, cuda::memory_order_relaxed);
}
template <typename Group, typename T, cuda::thread_scope kScope, typename V, typename Operation>
TMAASYNC_EMULATE_INLINE void reduce_store_async(
    const Group& group, const cuda::atomic_ref<T, kScope>& target, V value, Operation operation
) {
    const T total = reduce(group, static_cast<T>(value), operation);
    if (group.thread_rank() == 0) target.store(total, cuda::memory_order_relaxed);
}
template <typename Group, typename T, typename V, typename Operation>
TMAASYNC_EMULATE_INLINE void reduce_store_async(
    const Group& group, T* target, V value, Operation operation
) {
    const T total = reduce(group, static_cast<T>(value), operation);
    if (group.thread_rank() == 0) *target = total;
}

}  // namespace cooperative_groups
