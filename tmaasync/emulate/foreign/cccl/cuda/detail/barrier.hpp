// cuda::barrier: an mbarrier if it has block scope and lies in shared memory; a counter with a
// phase for wider scopes or with a completion function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda/detail/atomic.hpp>
#include <cuda/detail/shared_memory.hpp>
#include <cuda/detail/thread_scope.hpp>
#include <tmaasync/ptx/mbarrier.cuh>

namespace cuda::detail {

namespace tma = ::tmaasync::ptx;

struct NoCompletion {
    void operator()() const {}
};

constexpr ::std::ptrdiff_t kMaxArrivals = (1 << 20) - 1;

}  // namespace cuda::detail

namespace cuda {

template <thread_scope kScope, typename Completion = detail::NoCompletion>
class barrier {
public:
    class arrival_token {
        friend class barrier;
        unsigned phase;
    };

    barrier() = default;
    barrier(const barrier&) = delete;
    barrier& operator=(const barrier&) = delete;
    TMAASYNC_EMULATE_INLINE explicit barrier(
        ::std::ptrdiff_t expected, Completion completion = Completion()
    ) {
        init(this, expected, completion);
    }
    TMAASYNC_EMULATE_INLINE friend void init(
        barrier* self, ::std::ptrdiff_t expected, Completion completion = Completion()
    ) {
        self->expected_ = self->pending_ = static_cast<unsigned>(expected);
        self->phase_ = 0;
        self->completion_ = completion;
    }

    static constexpr ::std::ptrdiff_t max() { return detail::kMaxArrivals; }

    [[nodiscard]] TMAASYNC_EMULATE_INLINE arrival_token arrive(::std::ptrdiff_t count = 1) {
        arrival_token token;
        token.phase = phase().load(memory_order_relaxed);
        const auto arriving = static_cast<unsigned>(count);
        if (pending().fetch_sub(arriving, memory_order_acq_rel) == arriving) {
            completion_();
            pending().store(expected().load(memory_order_relaxed), memory_order_relaxed);
            phase().fetch_add(1, memory_order_release);
        }
        return token;
    }
    TMAASYNC_EMULATE_INLINE void wait(arrival_token&& token) const {
        while (phase().load(memory_order_acquire) == token.phase) {}
    }
    TMAASYNC_EMULATE_INLINE void wait_parity(bool parity) const {
        while ((phase().load(memory_order_acquire) & 1) == unsigned{parity}) {}
    }
    TMAASYNC_EMULATE_INLINE void arrive_and_wait() { wait(arrive()); }
    TMAASYNC_EMULATE_INLINE void arrive_and_drop() {
        expected().fetch_sub(1, memory_order_relaxed);
        (void)arrive();
    }

private:
    using Word = atomic_ref<unsigned, kScope>;
    TMAASYNC_EMULATE_INLINE Word expected() const { return Word(const_cast<unsigned&>(expected_)); }
    TMAASYNC_EMULATE_INLINE Word pending() const { return Word(const_cast<unsigned&>(pending_)); }
    TMAASYNC_EMULATE_INLINE Word phase() const { return Word(const_cast<unsigned&>(phase_)); }

    unsigned expected_;
    unsigned pending_;
    unsigned phase_;
    Completion completion_;
};

// Trivial, because `__shared__` variables have no constructors.
template <>
class barrier<thread_scope_block, detail::NoCompletion> {
public:
    using arrival_token = ::std::uint64_t;

    barrier() = default;
    barrier(const barrier&) = delete;
    barrier& operator=(const barrier&) = delete;
    TMAASYNC_EMULATE_INLINE explicit barrier(::std::ptrdiff_t expected) { init(this, expected); }
    TMAASYNC_EMULATE_INLINE friend void init(barrier* self, ::std::ptrdiff_t expected) {
        detail::tma::mbarrier_init(self->address(), static_cast<unsigned>(expected));
    }
    TMAASYNC_EMULATE_INLINE friend void init(
        barrier* self, ::std::ptrdiff_t expected, detail::NoCompletion
    ) {
        init(self, expected);
    }

    static constexpr ::std::ptrdiff_t max() { return detail::kMaxArrivals; }

    // Arrives, also at a barrier of another CTA of the cluster. The token of a remote arrival must
    // not be waited for.
    [[nodiscard]] TMAASYNC_EMULATE_INLINE arrival_token arrive(::std::ptrdiff_t count = 1) {
        return tmaasync_emulate::mbarrier_arrive(
            detail::shared_address(this), static_cast<unsigned>(count), 0,
            tmaasync_emulate::Order::kOrdered
        );
    }
    TMAASYNC_EMULATE_INLINE void wait(arrival_token&& token) const {
        while (!detail::tma::mbarrier_try_wait_parity(address(), token & 1)) {}
    }
    TMAASYNC_EMULATE_INLINE void wait_parity(bool parity) const {
        while (!detail::tma::mbarrier_try_wait_parity(address(), parity)) {}
    }
    TMAASYNC_EMULATE_INLINE void arrive_and_wait() { wait(arrive()); }
    TMAASYNC_EMULATE_INLINE void arrive_and_drop() {
        tmaasync_emulate::mbarrier_arrive_drop(address(), 1, tmaasync_emulate::Order::kOrdered);
    }

    // Tries once: the emulator has no clock.
    template <typename Duration>
    TMAASYNC_EMULATE_INLINE bool try_wait_for(arrival_token&& token, const Duration&) const {
        return detail::tma::mbarrier_try_wait_parity(address(), token & 1);
    }
    template <typename Duration>
    TMAASYNC_EMULATE_INLINE bool try_wait_parity_for(bool parity, const Duration&) const {
        return detail::tma::mbarrier_try_wait_parity(address(), parity);
    }

private:
    TMAASYNC_EMULATE_INLINE unsigned address() const { return detail::shared_address(this); }

    alignas(8)::std::uint64_t word_;
};

}  // namespace cuda

namespace cuda::device {

TMAASYNC_EMULATE_INLINE ::std::uint64_t* barrier_native_handle(
    barrier<thread_scope_block>& barrier
) {
    return reinterpret_cast<::std::uint64_t*>(&barrier);
}

TMAASYNC_EMULATE_INLINE void barrier_expect_tx(
    barrier<thread_scope_block>& barrier, ::std::ptrdiff_t bytes
) {
    detail::tma::mbarrier_expect_tx(detail::shared_address(&barrier), static_cast<unsigned>(bytes));
}

// Expects the bytes, then arrives.
[[nodiscard]] TMAASYNC_EMULATE_INLINE barrier<thread_scope_block>::arrival_token barrier_arrive_tx(
    barrier<thread_scope_block>& barrier, ::std::ptrdiff_t arrivals, ::std::ptrdiff_t bytes
) {
    return tmaasync_emulate::mbarrier_arrive(
        detail::shared_address(&barrier), static_cast<unsigned>(arrivals),
        static_cast<unsigned>(bytes), tmaasync_emulate::Order::kOrdered
    );
}

}  // namespace cuda::device

namespace cuda::std {

template <typename Completion = ::cuda::detail::NoCompletion>
using barrier = ::cuda::barrier<thread_scope_system, Completion>;

}  // namespace cuda::std
