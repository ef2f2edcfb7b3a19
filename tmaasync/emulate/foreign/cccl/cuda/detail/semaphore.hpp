#pragma once

#include <cstddef>
#include <cuda/detail/atomic.hpp>

namespace cuda {

template <thread_scope kScope, ::std::ptrdiff_t kMost = 0x7fffffff>
class counting_semaphore {
public:
    counting_semaphore() = default;
    constexpr explicit counting_semaphore(::std::ptrdiff_t count)
        : count_(static_cast<int>(count)) {}
    counting_semaphore(const counting_semaphore&) = delete;
    counting_semaphore& operator=(const counting_semaphore&) = delete;
    static constexpr ::std::ptrdiff_t max() { return kMost; }

    TMAASYNC_EMULATE_INLINE void release(::std::ptrdiff_t count = 1) {
        count_.fetch_add(static_cast<int>(count), memory_order_release);
    }
    TMAASYNC_EMULATE_INLINE bool try_acquire() {
        int held = count_.load(memory_order_relaxed);
        return held > 0 && count_.compare_exchange_strong(held, held - 1, memory_order_acquire);
    }
    TMAASYNC_EMULATE_INLINE void acquire() {
        while (!try_acquire()) {}
    }

private:
    atomic<int, kScope> count_;
};

template <thread_scope kScope>
using binary_semaphore = counting_semaphore<kScope, 1>;

}  // namespace cuda

namespace cuda::std {

template <::std::ptrdiff_t kMost = 0x7fffffff>
using counting_semaphore = ::cuda::counting_semaphore<thread_scope_system, kMost>;
using binary_semaphore = ::cuda::binary_semaphore<thread_scope_system>;

}  // namespace cuda::std
