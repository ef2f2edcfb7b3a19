// nvcuda::experimental::awbarrier, which cuda::barrier has replaced.
#pragma once

#include <cuda_awbarrier_primitives.h>

namespace nvcuda::experimental {

class awbarrier {
public:
    class arrival_token {
    public:
        arrival_token() = default;

    private:
        friend class awbarrier;
        TMAASYNC_EMULATE_INLINE arrival_token(__mbarrier_token_t token) : token_(token) {}
        __mbarrier_token_t token_;
    };

    awbarrier() = default;
    awbarrier(const awbarrier&) = delete;
    awbarrier& operator=(const awbarrier&) = delete;

    TMAASYNC_EMULATE_INLINE arrival_token arrive() { return __mbarrier_arrive(&word_); }
    TMAASYNC_EMULATE_INLINE arrival_token arrive_and_drop() {
        return __mbarrier_arrive_and_drop(&word_);
    }
    TMAASYNC_EMULATE_INLINE void wait(arrival_token token) {
        while (!__mbarrier_try_wait(&word_, token.token_, 0)) {}
    }
    TMAASYNC_EMULATE_INLINE void arrive_and_wait() { wait(arrive()); }
    TMAASYNC_EMULATE_INLINE bool try_wait(arrival_token token, unsigned nanoseconds) {
        return __mbarrier_try_wait(&word_, token.token_, nanoseconds);
    }
    TMAASYNC_EMULATE_INLINE bool try_wait_parity(bool parity, unsigned nanoseconds) {
        return __mbarrier_try_wait_parity(&word_, parity, nanoseconds);
    }
    TMAASYNC_EMULATE_INLINE bool timed_wait(arrival_token token, unsigned) {
        return __mbarrier_test_wait(&word_, token.token_);
    }
    TMAASYNC_EMULATE_INLINE bool timed_wait_parity(bool parity, unsigned) {
        return __mbarrier_test_wait_parity(&word_, parity);
    }
    static constexpr unsigned max() { return __mbarrier_maximum_count(); }

private:
    friend class pipeline;
    friend TMAASYNC_EMULATE_INLINE void init(awbarrier* barrier, unsigned expected_count) {
        __mbarrier_init(&barrier->word_, expected_count);
    }
    friend TMAASYNC_EMULATE_INLINE void inval(awbarrier* barrier) {
        __mbarrier_inval(&barrier->word_);
    }

    __mbarrier_t word_;
};

}  // namespace nvcuda::experimental
