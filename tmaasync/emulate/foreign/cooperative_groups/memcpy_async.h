// Copies by a group with cp.async. Each copy is a separate cp.async group, for wait_prior.
#pragma once

#include <cooperative_groups.h>

#include <cuda/detail/memcpy_async.hpp>

namespace cooperative_groups {

// Copies a number of bytes.
template <typename Group, typename T, typename Size>
TMAASYNC_EMULATE_INLINE void memcpy_async(
    const Group& group, T* target, const T* source, const Size& bytes
) {
    cuda::detail::copy_share<cuda::detail::kCopyAlignment<T, Size>>(
        group, target, source, static_cast<std::size_t>(bytes)
    );
    tmaasync::ptx::cp_async_commit_group();
}
template <typename Group, typename Size>
TMAASYNC_EMULATE_INLINE void memcpy_async(
    const Group& group, void* target, const void* source, const Size& bytes
) {
    cuda::detail::copy_share<cuda::detail::kCopyAlignment<void, Size>>(
        group, target, source, static_cast<std::size_t>(bytes)
    );
    tmaasync::ptx::cp_async_commit_group();
}
// Copies the smaller of two numbers of elements.
template <typename Group, typename T, typename TargetLayout, typename SourceLayout>
TMAASYNC_EMULATE_INLINE void memcpy_async(
    const Group& group,
    T* target,
    const TargetLayout& target_elements,
    const T* source,
    const SourceLayout& source_elements
) {
    const auto to = static_cast<std::size_t>(target_elements);
    const auto from = static_cast<std::size_t>(source_elements);
    cuda::detail::copy_share<alignof(T)>(
        group, target, source, (to < from ? to : from) * sizeof(T)
    );
    tmaasync::ptx::cp_async_commit_group();
}

template <unsigned kPending, typename Group>
TMAASYNC_EMULATE_INLINE void wait_prior(const Group& group) {
    tmaasync::ptx::cp_async_wait_group<int{kPending}>();
    group.sync();
}
template <typename Group>
TMAASYNC_EMULATE_INLINE void wait(const Group& group) {
    wait_prior<0>(group);
}

}  // namespace cooperative_groups
