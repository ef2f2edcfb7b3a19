// cuda::device::experimental: the copies in the Programming Guide's TMA samples.
#pragma once

#include <cuda/detail/barrier.hpp>
#include <cuda/detail/shared_memory.hpp>
#include <tmaasync/ptx/cp_async_bulk.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor.cuh>
#include <tmaasync/ptx/fence.cuh>

// <cuda.h> defines this struct and its typedef.
struct CUtensorMap_st;

namespace cuda::device::experimental {

namespace detail {

using namespace ::cuda::detail;

template <typename... I>
TMAASYNC_EMULATE_INLINE void load_box(
    void* target, const CUtensorMap_st* map, barrier<thread_scope_block>& barrier, I... at
) {
    tma::cp_async_bulk_tensor_load(
        shared_address(target), reinterpret_cast<const tma::TensorMap*>(map),
        tma::Coordinates<sizeof...(I)>(at...), shared_address(&barrier), 0
    );
}
template <typename... I>
TMAASYNC_EMULATE_INLINE void store_box(const CUtensorMap_st* map, const void* source, I... at) {
    tma::cp_async_bulk_tensor_store(
        reinterpret_cast<const tma::TensorMap*>(map), tma::Coordinates<sizeof...(I)>(at...),
        shared_address(source), 0
    );
}

}  // namespace detail

TMAASYNC_EMULATE_INLINE void cp_async_bulk_global_to_shared(
    void* target, const void* source, unsigned bytes, barrier<thread_scope_block>& barrier
) {
    detail::tma::cp_async_bulk_load(
        detail::shared_address(target), source, bytes, detail::shared_address(&barrier), 0
    );
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_shared_to_global(
    void* target, const void* source, unsigned bytes
) {
    detail::tma::cp_async_bulk_store(target, detail::shared_address(source), bytes, 0);
}

TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_1d_global_to_shared(
    void* target, const CUtensorMap_st* map, int c0, barrier<thread_scope_block>& barrier
) {
    detail::load_box(target, map, barrier, c0);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_2d_global_to_shared(
    void* target, const CUtensorMap_st* map, int c0, int c1, barrier<thread_scope_block>& barrier
) {
    detail::load_box(target, map, barrier, c0, c1);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_3d_global_to_shared(
    void* target,
    const CUtensorMap_st* map,
    int c0,
    int c1,
    int c2,
    barrier<thread_scope_block>& barrier
) {
    detail::load_box(target, map, barrier, c0, c1, c2);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_4d_global_to_shared(
    void* target,
    const CUtensorMap_st* map,
    int c0,
    int c1,
    int c2,
    int c3,
    barrier<thread_scope_block>& barrier
) {
    detail::load_box(target, map, barrier, c0, c1, c2, c3);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_5d_global_to_shared(
    void* target,
    const CUtensorMap_st* map,
    int c0,
    int c1,
    int c2,
    int c3,
    int c4,
    barrier<thread_scope_block>& barrier
) {
    detail::load_box(target, map, barrier, c0, c1, c2, c3, c4);
}

TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_1d_shared_to_global(
    const CUtensorMap_st* map, int c0, const void* source
) {
    detail::store_box(map, source, c0);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_2d_shared_to_global(
    const CUtensorMap_st* map, int c0, int c1, const void* source
) {
    detail::store_box(map, source, c0, c1);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_3d_shared_to_global(
    const CUtensorMap_st* map, int c0, int c1, int c2, const void* source
) {
    detail::store_box(map, source, c0, c1, c2);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_4d_shared_to_global(
    const CUtensorMap_st* map, int c0, int c1, int c2, int c3, const void* source
) {
    detail::store_box(map, source, c0, c1, c2, c3);
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_5d_shared_to_global(
    const CUtensorMap_st* map, int c0, int c1, int c2, int c3, int c4, const void* source
) {
    detail::store_box(map, source, c0, c1, c2, c3, c4);
}

TMAASYNC_EMULATE_INLINE void fence_proxy_async_shared_cta() {
    detail::tma::fence_proxy_async_shared();
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk_commit_group() {
    detail::tma::cp_async_bulk_commit_group();
}
template <int kPending>
TMAASYNC_EMULATE_INLINE void cp_async_bulk_wait_group_read() {
    static_assert(kPending >= 0 && kPending <= 63, "0 to 63 groups may stay pending");
    detail::tma::cp_async_bulk_wait_group_read<kPending>();
}

}  // namespace cuda::device::experimental
