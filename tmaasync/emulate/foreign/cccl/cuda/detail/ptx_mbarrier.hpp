#pragma once

#include <cstdint>
#include <cuda/detail/ptx_tags.hpp>
#include <cuda/detail/shared_memory.hpp>
#include <tmaasync/ptx/cp_async.cuh>
#include <tmaasync/ptx/mbarrier.cuh>

namespace cuda::detail {

namespace tma = ::tmaasync::ptx;

// Accepts either uint64_t: NVRTC's is unsigned long long, and Linux's is unsigned long.
struct BarrierWord {
    const void* pointer;

    TMAASYNC_EMULATE_INLINE BarrierWord(unsigned long* word) : pointer(word) {}
    TMAASYNC_EMULATE_INLINE BarrierWord(unsigned long long* word) : pointer(word) {}
    TMAASYNC_EMULATE_INLINE operator const void*() const { return pointer; }
};

TMAASYNC_EMULATE_INLINE ::std::uint64_t arrive_at(
    ::std::uint32_t barrier,
    ::std::uint32_t arrivals,
    ::std::uint32_t bytes,
    tmaasync_emulate::Order order
) {
    return tmaasync_emulate::mbarrier_arrive(barrier, arrivals, bytes, order);
}

// A state token is valid in its own phase and the next, so its parity distinguishes the two.
TMAASYNC_EMULATE_INLINE bool try_wait(
    BarrierWord barrier, ::std::uint64_t state, tmaasync_emulate::Order order
) {
    return tmaasync_emulate::mbarrier_try_wait(shared_address(barrier), state & 1, order);
}

}  // namespace cuda::detail

namespace cuda::ptx {

using ::std::uint32_t;
using ::std::uint64_t;

TMAASYNC_EMULATE_INLINE void mbarrier_init(detail::BarrierWord barrier, uint32_t arrivals) {
    detail::tma::mbarrier_init(detail::shared_address(barrier), arrivals);
}

TMAASYNC_EMULATE_INLINE void mbarrier_inval(detail::BarrierWord barrier) {
    detail::tma::mbarrier_inval(detail::shared_address(barrier));
}

// --- arrivals ------------------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE uint64_t
mbarrier_arrive(detail::BarrierWord barrier, uint32_t arrivals = 1) {
    return detail::tma::mbarrier_arrive(detail::shared_address(barrier), arrivals);
}
TMAASYNC_EMULATE_INLINE uint64_t
mbarrier_arrive_no_complete(detail::BarrierWord barrier, uint32_t arrivals) {
    tmaasync_emulate::mbarrier_check_no_complete(detail::shared_address(barrier), arrivals);
    return detail::tma::mbarrier_arrive(detail::shared_address(barrier), arrivals);
}

#define TMAASYNC_EMULATE_ARRIVALS(SEM, ORDER)                                                     \
    template <dot_scope kScope>                                                                   \
    TMAASYNC_EMULATE_INLINE uint64_t mbarrier_arrive(                                             \
        SEM, scope_t<kScope>, space_shared_t, detail::BarrierWord barrier, uint32_t arrivals = 1  \
    ) {                                                                                           \
        return detail::arrive_at(                                                                 \
            detail::shared_address(barrier), arrivals, 0, tmaasync_emulate::Order::ORDER          \
        );                                                                                        \
    }                                                                                             \
    TMAASYNC_EMULATE_INLINE void mbarrier_arrive(                                                 \
        SEM, scope_cluster_t, space_cluster_t, detail::BarrierWord barrier, uint32_t arrivals = 1 \
    ) {                                                                                           \
        detail::arrive_at(                                                                        \
            detail::shared_address(barrier), arrivals, 0, tmaasync_emulate::Order::ORDER          \
        );                                                                                        \
    }                                                                                             \
    template <dot_scope kScope>                                                                   \
    TMAASYNC_EMULATE_INLINE uint64_t mbarrier_arrive_expect_tx(                                   \
        SEM, scope_t<kScope>, space_shared_t, detail::BarrierWord barrier, uint32_t bytes         \
    ) {                                                                                           \
        return detail::arrive_at(                                                                 \
            detail::shared_address(barrier), 1, bytes, tmaasync_emulate::Order::ORDER             \
        );                                                                                        \
    }                                                                                             \
    TMAASYNC_EMULATE_INLINE void mbarrier_arrive_expect_tx(                                       \
        SEM, scope_cluster_t, space_cluster_t, detail::BarrierWord barrier, uint32_t bytes        \
    ) {                                                                                           \
        detail::arrive_at(                                                                        \
            detail::shared_address(barrier), 1, bytes, tmaasync_emulate::Order::ORDER             \
        );                                                                                        \
    }
TMAASYNC_EMULATE_ARRIVALS(sem_release_t, kOrdered)
TMAASYNC_EMULATE_ARRIVALS(sem_relaxed_t, kRelaxed)
#undef TMAASYNC_EMULATE_ARRIVALS

template <dot_scope kScope>
TMAASYNC_EMULATE_INLINE void mbarrier_expect_tx(
    sem_relaxed_t, scope_t<kScope>, space_shared_t, detail::BarrierWord barrier, uint32_t bytes
) {
    detail::tma::mbarrier_expect_tx(detail::shared_address(barrier), bytes);
}
template <dot_scope kScope>
TMAASYNC_EMULATE_INLINE void mbarrier_expect_tx(
    sem_relaxed_t, scope_t<kScope>, space_cluster_t, detail::BarrierWord barrier, uint32_t bytes
) {
    detail::tma::mbarrier_expect_tx(detail::shared_address(barrier), bytes);
}

TMAASYNC_EMULATE_INLINE void cp_async_mbarrier_arrive(detail::BarrierWord barrier) {
    detail::tma::cp_async_mbarrier_arrive(detail::shared_address(barrier));
}
TMAASYNC_EMULATE_INLINE void cp_async_mbarrier_arrive_noinc(detail::BarrierWord barrier) {
    detail::tma::cp_async_mbarrier_arrive_noinc(detail::shared_address(barrier));
}

// --- waits ---------------------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE bool mbarrier_test_wait(detail::BarrierWord barrier, uint64_t state) {
    return detail::tma::mbarrier_test_wait(detail::shared_address(barrier), state);
}
TMAASYNC_EMULATE_INLINE bool mbarrier_test_wait_parity(
    detail::BarrierWord barrier, uint32_t parity
) {
    return detail::tma::mbarrier_test_wait_parity(detail::shared_address(barrier), parity);
}
// The last argument is a time limit, and the emulator has no clock.
TMAASYNC_EMULATE_INLINE bool mbarrier_try_wait(
    detail::BarrierWord barrier, uint64_t state, uint32_t = 0
) {
    return detail::try_wait(barrier, state, tmaasync_emulate::Order::kOrdered);
}
TMAASYNC_EMULATE_INLINE bool mbarrier_try_wait_parity(
    detail::BarrierWord barrier, uint32_t parity, uint32_t = 0
) {
    return detail::tma::mbarrier_try_wait_parity(detail::shared_address(barrier), parity);
}

#define TMAASYNC_EMULATE_WAITS(SEM, ORDER)                                               \
    template <dot_scope kScope>                                                          \
    TMAASYNC_EMULATE_INLINE bool mbarrier_test_wait(                                     \
        SEM, scope_t<kScope>, detail::BarrierWord barrier, uint64_t state                \
    ) {                                                                                  \
        return tmaasync_emulate::mbarrier_test_wait(                                     \
            detail::shared_address(barrier), state & 1, tmaasync_emulate::Order::ORDER   \
        );                                                                               \
    }                                                                                    \
    template <dot_scope kScope>                                                          \
    TMAASYNC_EMULATE_INLINE bool mbarrier_test_wait_parity(                              \
        SEM, scope_t<kScope>, detail::BarrierWord barrier, uint32_t parity               \
    ) {                                                                                  \
        return tmaasync_emulate::mbarrier_test_wait(                                     \
            detail::shared_address(barrier), parity, tmaasync_emulate::Order::ORDER      \
        );                                                                               \
    }                                                                                    \
    template <dot_scope kScope>                                                          \
    TMAASYNC_EMULATE_INLINE bool mbarrier_try_wait(                                      \
        SEM, scope_t<kScope>, detail::BarrierWord barrier, uint64_t state, uint32_t = 0  \
    ) {                                                                                  \
        return detail::try_wait(barrier, state, tmaasync_emulate::Order::ORDER);         \
    }                                                                                    \
    template <dot_scope kScope>                                                          \
    TMAASYNC_EMULATE_INLINE bool mbarrier_try_wait_parity(                               \
        SEM, scope_t<kScope>, detail::BarrierWord barrier, uint32_t parity, uint32_t = 0 \
    ) {                                                                                  \
        return tmaasync_emulate::mbarrier_try_wait(                                      \
            detail::shared_address(barrier), parity, tmaasync_emulate::Order::ORDER      \
        );                                                                               \
    }
TMAASYNC_EMULATE_WAITS(sem_acquire_t, kOrdered)
TMAASYNC_EMULATE_WAITS(sem_relaxed_t, kRelaxed)
#undef TMAASYNC_EMULATE_WAITS

}  // namespace cuda::ptx
