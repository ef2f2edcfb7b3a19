// Barriers of the CUDA C++ Programming Guide's primitives interface: mbarriers in shared memory.
#pragma once

#include <cuda/detail/ptx_mbarrier.hpp>

using __mbarrier_t = unsigned long long;
using __mbarrier_token_t = unsigned long long;

constexpr unsigned __mbarrier_maximum_count() {
    return (1u << 20) - 1;
}

TMAASYNC_EMULATE_INLINE void __mbarrier_init(__mbarrier_t* barrier, unsigned expected_count) {
    cuda::ptx::mbarrier_init(barrier, expected_count);
}
TMAASYNC_EMULATE_INLINE void __mbarrier_inval(__mbarrier_t* barrier) {
    cuda::ptx::mbarrier_inval(barrier);
}

TMAASYNC_EMULATE_INLINE __mbarrier_token_t __mbarrier_arrive(__mbarrier_t* barrier) {
    return cuda::ptx::mbarrier_arrive(barrier);
}
TMAASYNC_EMULATE_INLINE __mbarrier_token_t __mbarrier_arrive_and_drop(__mbarrier_t* barrier) {
    return tmaasync_emulate::mbarrier_arrive_drop(
        cuda::detail::shared_address(barrier), 1, tmaasync_emulate::Order::kOrdered
    );
}

TMAASYNC_EMULATE_INLINE bool __mbarrier_test_wait(__mbarrier_t* barrier, __mbarrier_token_t token) {
    return cuda::ptx::mbarrier_test_wait(barrier, token);
}
TMAASYNC_EMULATE_INLINE bool __mbarrier_test_wait_parity(__mbarrier_t* barrier, bool parity) {
    return cuda::ptx::mbarrier_test_wait_parity(barrier, parity);
}
// The last argument is a time limit, and the emulator has no clock.
TMAASYNC_EMULATE_INLINE bool __mbarrier_try_wait(
    __mbarrier_t* barrier, __mbarrier_token_t token, unsigned
) {
    return cuda::ptx::mbarrier_try_wait(barrier, token);
}
TMAASYNC_EMULATE_INLINE bool __mbarrier_try_wait_parity(
    __mbarrier_t* barrier, bool parity, unsigned
) {
    return cuda::ptx::mbarrier_try_wait_parity(barrier, parity);
}

template <typename Token>
void __mbarrier_token_pending_count(Token) {
    static_assert(
        sizeof(Token) == 0,
        "__mbarrier_token_pending_count: a token holds no count of arrivals on the CPU"
    );
}
