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

#define TMAASYNC_EMULATE_UNPACKED(...) __VA_ARGS__
#define TMAASYNC_EMULATE_TENSOR_COPIES(RANK, PARAMETERS, ...)                               \
    TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_##RANK##_global_to_shared(            \
        void* target, const CUtensorMap_st* map, TMAASYNC_EMULATE_UNPACKED PARAMETERS,      \
        barrier<thread_scope_block>& barrier                                                \
    ) {                                                                                     \
        detail::load_box(target, map, barrier, __VA_ARGS__);                                \
    }                                                                                       \
    TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor_##RANK##_shared_to_global(            \
        const CUtensorMap_st* map, TMAASYNC_EMULATE_UNPACKED PARAMETERS, const void* source \
    ) {                                                                                     \
        detail::store_box(map, source, __VA_ARGS__);                                        \
    }
TMAASYNC_EMULATE_TENSOR_COPIES(1d, (int c0), c0)
TMAASYNC_EMULATE_TENSOR_COPIES(2d, (int c0, int c1), c0, c1)
TMAASYNC_EMULATE_TENSOR_COPIES(3d, (int c0, int c1, int c2), c0, c1, c2)
TMAASYNC_EMULATE_TENSOR_COPIES(4d, (int c0, int c1, int c2, int c3), c0, c1, c2, c3)
TMAASYNC_EMULATE_TENSOR_COPIES(5d, (int c0, int c1, int c2, int c3, int c4), c0, c1, c2, c3, c4)
#undef TMAASYNC_EMULATE_TENSOR_COPIES
#undef TMAASYNC_EMULATE_UNPACKED

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
