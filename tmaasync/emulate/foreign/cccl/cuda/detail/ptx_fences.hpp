#pragma once

#include <cuda/detail/ptx_tags.hpp>
#include <cuda/detail/shared_memory.hpp>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/cluster.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/ptx/sync.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync/ptx/tensormap_edit.cuh>

namespace cuda::detail {

namespace tma = ::tmaasync::ptx;

TMAASYNC_EMULATE_INLINE void fence_of(ptx::dot_scope scope) {
    using tmaasync_emulate::Scope;
    const bool is_narrow = scope == ptx::dot_scope::cta || scope == ptx::dot_scope::cluster;
    const Scope wide = scope == ptx::dot_scope::sys ? Scope::kSystem : Scope::kGpu;
    tmaasync_emulate::fence(is_narrow ? Scope::kCta : wide);
}

}  // namespace cuda::detail

namespace cuda::ptx {

template <dot_sem kSem, dot_scope kScope>
TMAASYNC_EMULATE_INLINE void fence(sem_t<kSem>, scope_t<kScope>) {
    static_assert(kSem != dot_sem::relaxed && kSem != dot_sem::weak, "a fence has an order");
    detail::fence_of(kScope);
}

TMAASYNC_EMULATE_INLINE void fence_mbarrier_init(sem_release_t, scope_cluster_t) {
    detail::tma::fence_mbarrier_init();
}

template <dot_sem kSem, dot_space kSpace>
TMAASYNC_EMULATE_INLINE void fence_sync_restrict(sem_t<kSem>, space_t<kSpace>, scope_cluster_t) {
    static_assert(kSpace == (kSem == dot_sem::acquire ? dot_space::cluster : dot_space::shared));
    detail::fence_of(dot_scope::cluster);
}

template <dot_sem kSem, dot_space kSpace>
TMAASYNC_EMULATE_INLINE void fence_proxy_async_generic_sync_restrict(
    sem_t<kSem>, space_t<kSpace>, scope_cluster_t
) {
    static_assert(kSpace == (kSem == dot_sem::acquire ? dot_space::cluster : dot_space::shared));
    detail::tma::fence_proxy_async_shared();
}

TMAASYNC_EMULATE_INLINE void fence_proxy_alias() {}
TMAASYNC_EMULATE_INLINE void fence_proxy_async() {
    detail::tma::fence_proxy_async_shared();
    detail::tma::fence_proxy_async_global();
}
template <dot_space kSpace>
TMAASYNC_EMULATE_INLINE void fence_proxy_async(space_t<kSpace>) {
    if constexpr (kSpace == dot_space::global) {
        detail::tma::fence_proxy_async_global();
    } else {
        detail::tma::fence_proxy_async_shared();
    }
}

// --- clusters ------------------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE void barrier_cluster_arrive() {
    detail::tma::barrier_cluster_arrive();
}
TMAASYNC_EMULATE_INLINE void barrier_cluster_arrive(sem_release_t) {
    detail::tma::barrier_cluster_arrive();
}
TMAASYNC_EMULATE_INLINE void barrier_cluster_arrive(sem_relaxed_t) {
    detail::tma::barrier_cluster_arrive_relaxed();
}
TMAASYNC_EMULATE_INLINE void barrier_cluster_wait() {
    detail::tma::barrier_cluster_wait();
}
TMAASYNC_EMULATE_INLINE void barrier_cluster_wait(sem_acquire_t) {
    detail::tma::barrier_cluster_wait();
}

template <typename T>
TMAASYNC_EMULATE_INLINE T* mapa(space_cluster_t, T* pointer, unsigned cta_rank) {
    const auto address = reinterpret_cast<unsigned long long>(pointer);
    return reinterpret_cast<T*>(detail::tma::mapa(address, cta_rank));
}
TMAASYNC_EMULATE_INLINE unsigned getctarank(space_cluster_t, const void* pointer) {
    return detail::tma::getctarank(detail::shared_address(pointer));
}

// --- edits of tensor maps ------------------------------------------------------------------------

template <dot_scope kScope>
TMAASYNC_EMULATE_INLINE void fence_proxy_tensormap_generic(sem_release_t, scope_t<kScope>) {
    detail::tma::fence_proxy_tensormap_release_gpu();
}
template <int kBytes, dot_scope kScope>
TMAASYNC_EMULATE_INLINE void fence_proxy_tensormap_generic(
    sem_acquire_t, scope_t<kScope>, const void* map, n32_t<kBytes>
) {
    static_assert(kBytes == 128, "a tensor map is 128 bytes");
    detail::tma::fence_proxy_tensormap_acquire_gpu(static_cast<const detail::tma::TensorMap*>(map));
}
template <int kBytes, dot_scope kScope>
TMAASYNC_EMULATE_INLINE void tensormap_cp_fenceproxy(
    sem_release_t, scope_t<kScope>, void* target, const void* source, n32_t<kBytes>
) {
    static_assert(kBytes == 128, "a tensor map is 128 bytes");
    detail::tma::tensormap_cp_fenceproxy(
        static_cast<detail::tma::TensorMap*>(target), detail::shared_address(source)
    );
}

}  // namespace cuda::ptx

namespace cuda::detail {

TMAASYNC_EMULATE_INLINE tma::TensorMap* edited_map(ptx::space_global_t, void* map) {
    return static_cast<tma::TensorMap*>(map);
}
TMAASYNC_EMULATE_INLINE ::std::uint32_t edited_map(ptx::space_shared_t, void* map) {
    return shared_address(map);
}

}  // namespace cuda::detail

namespace cuda::ptx {

template <dot_space kSpace, typename T>
TMAASYNC_EMULATE_INLINE void tensormap_replace_global_address(
    space_t<kSpace> space, void* map, T address
) {
    static_assert(sizeof(T) == 8, "an address has 8 bytes");
    detail::tma::tensormap_replace_global_address(
        detail::edited_map(space, map), __builtin_bit_cast(const void*, address)
    );
}
template <dot_space kSpace>
TMAASYNC_EMULATE_INLINE void tensormap_replace_rank(
    space_t<kSpace> space, void* map, unsigned rank_less_one
) {
    detail::tma::tensormap_replace_rank(detail::edited_map(space, map), rank_less_one);
}

// Fields with a dimension number, and then fields whose value is chosen at compile time.
#define TMAASYNC_EMULATE_REPLACE_AT(NAME, FIELD, TYPE)                                           \
    template <int kOrdinal, dot_space kSpace>                                                    \
    TMAASYNC_EMULATE_INLINE void tensormap_replace_##NAME(                                       \
        space_t<kSpace> space, void* map, n32_t<kOrdinal>, TYPE value                            \
    ) {                                                                                          \
        detail::tma::tensormap_replace_##FIELD<kOrdinal>(detail::edited_map(space, map), value); \
    }
TMAASYNC_EMULATE_REPLACE_AT(box_dim, box_dim, unsigned)
TMAASYNC_EMULATE_REPLACE_AT(global_dim, global_dim, unsigned)
TMAASYNC_EMULATE_REPLACE_AT(global_stride, global_stride, unsigned long long)
TMAASYNC_EMULATE_REPLACE_AT(element_size, element_stride, unsigned)
TMAASYNC_EMULATE_REPLACE_AT(element_stride, element_stride, unsigned)
#undef TMAASYNC_EMULATE_REPLACE_AT

#define TMAASYNC_EMULATE_REPLACE(FIELD)                                                 \
    template <int kValue, dot_space kSpace>                                             \
    TMAASYNC_EMULATE_INLINE void tensormap_replace_##FIELD(                             \
        space_t<kSpace> space, void* map, n32_t<kValue>                                 \
    ) {                                                                                 \
        detail::tma::tensormap_replace_##FIELD<kValue>(detail::edited_map(space, map)); \
    }
TMAASYNC_EMULATE_REPLACE(elemtype)
TMAASYNC_EMULATE_REPLACE(interleave_layout)
TMAASYNC_EMULATE_REPLACE(swizzle_mode)
TMAASYNC_EMULATE_REPLACE(fill_mode)
#undef TMAASYNC_EMULATE_REPLACE

}  // namespace cuda::ptx
