// Tokens from threads that wait for signals to the thread that loads what has arrived.
#pragma once
#include <tmaasync/barrier.cuh>
#include <tmaasync/pipeline.cuh>

namespace tmaasync::kernels {

// The waiting threads, kWaiters of them, pass a token when all that it stands for has arrived. They
// are up to kTokens tokens ahead. Both sides agree on what each token stands for.
template <int kWaiters>
struct ArrivalRing {
    static constexpr int kTokens = 4;
    using State = PipelineState<kTokens>;

    SharedMemBarrier full[kTokens], empty[kTokens];

    __device__ void init() {
        for (int i = 0; i < kTokens; ++i) {
            full[i].init(kWaiters);
            empty[i].init(1);
        }
    }

    // Pass the next token once wait() returns; called by every waiting thread.
    template <typename Wait>
    __device__ __forceinline__ void pass(State& next, const Wait& wait) {
        empty[next.index].wait(next.phase);
        wait();
        full[next.index].arrive();
        next.step();
    }

    // Wait for the next token; called by the thread that loads.
    __device__ __forceinline__ void take(State& next) {
        full[next.index].wait(next.phase);
        empty[next.index].arrive();
        next.step();
    }
};

}  // namespace tmaasync::kernels
