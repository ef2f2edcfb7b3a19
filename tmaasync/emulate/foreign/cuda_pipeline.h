// nvcuda::experimental::pipeline, which cuda::pipeline has replaced.
#pragma once

#include <cuda_awbarrier.h>
#include <cuda_pipeline_primitives.h>

namespace nvcuda::experimental {

class pipeline {
public:
    TMAASYNC_EMULATE_INLINE pipeline() = default;
    pipeline(const pipeline&) = delete;
    pipeline& operator=(const pipeline&) = delete;

    TMAASYNC_EMULATE_INLINE ::std::size_t commit() {
        __pipeline_commit();
        return batch_++;
    }
    TMAASYNC_EMULATE_INLINE void commit_and_wait() {
        commit();
        wait_prior<0>();
    }
    // As in CUDA: one group more than the later batches may be in flight.
    TMAASYNC_EMULATE_INLINE void wait(::std::size_t batch) {
        __pipeline_wait_prior(batch_ > batch ? batch_ - batch : 0);
    }
    template <unsigned kPending>
    TMAASYNC_EMULATE_INLINE void wait_prior() {
        __pipeline_wait_prior(kPending);
    }
    TMAASYNC_EMULATE_INLINE void arrive_on(awbarrier& barrier) {
        __pipeline_arrive_on(&barrier.word_);
    }

private:
    ::std::size_t batch_ = 0;
};

// Copies one object of 4, 8 or 16 bytes with cp.async, as the chip does, and an object of another
// size with a store.
template <typename T>
TMAASYNC_EMULATE_INLINE void memcpy_async(T& target, const T& source, pipeline&) {
    if constexpr (sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16) {
        __pipeline_memcpy_async(&target, &source, sizeof(T));
    } else {
        target = source;
    }
}

}  // namespace nvcuda::experimental
