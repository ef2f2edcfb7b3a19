#pragma once

#include <cstddef>
#include <cuda/detail/atomic.hpp>

namespace cuda {

template <thread_scope kScope>
class latch {
public:
    latch() = default;
    constexpr explicit latch(::std::ptrdiff_t expected) : left_(static_cast<int>(expected)) {}
    latch(const latch&) = delete;
    latch& operator=(const latch&) = delete;

    TMAASYNC_EMULATE_INLINE void count_down(::std::ptrdiff_t count = 1) {
        left_.fetch_sub(static_cast<int>(count), memory_order_release);
    }
    TMAASYNC_EMULATE_INLINE bool try_wait() const { return left_.load(memory_order_acquire) == 0; }
    TMAASYNC_EMULATE_INLINE void wait() const {
        while (!try_wait()) {}
    }
    TMAASYNC_EMULATE_INLINE void arrive_and_wait(::std::ptrdiff_t count = 1) {
        count_down(count);
        wait();
    }

private:
    atomic<int, kScope> left_;
};

}  // namespace cuda

namespace cuda::std {

using latch = ::cuda::latch<thread_scope_system>;

}  // namespace cuda::std
