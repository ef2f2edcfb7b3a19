#pragma once

#include <tmaasync/ptx/mbarrier.cuh>
#include <tmaasync/ptx/trace.cuh>

namespace tmaasync {

// Notes a wait for a phase, from here to the end of the scope, in builds that are traced.
class TracedWait {
public:
    __device__ __forceinline__ TracedWait(u32 barrier, u32 phase)
        : barrier_(barrier), phase_(phase) {
        if constexpr (ptx::kIsTraced) {
            began_ = ptx::trace_clock();
            // A wait that finds its phase complete does not tell since when.
            is_ready_ = ptx::mbarrier_test_wait_parity(barrier, phase);
        }
    }

    __device__ __forceinline__ ~TracedWait() {
        ptx::trace_phase_wait(barrier_, phase_, is_ready_, began_);
    }

    TracedWait(const TracedWait&) = delete;
    TracedWait& operator=(const TracedWait&) = delete;

private:
    u32 barrier_;
    u32 phase_;
    u32 began_ = 0;
    bool is_ready_ = false;
};

}  // namespace tmaasync
