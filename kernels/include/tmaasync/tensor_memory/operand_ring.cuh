#pragma once

#include <tmaasync/structured/ring.cuh>
#include <tmaasync/tcgen05.cuh>

namespace tmaasync {

// A ring of operand tiles that TMA fills and tcgen05.mma reads (CUTLASS's PipelineTmaUmmaAsync).
// One thread consumes it: a stage that it releases is free when its mma have completed.
template <typename StageType, int kStageCount>
struct Tcgen05Ring : Ring<StageType, kStageCount, ConsumerWarps<1>> {
    [[nodiscard]] __device__ __forceinline__ RingConsumer<Tcgen05Ring, Proxy::kAsync> consumer() {
        return RingConsumer<Tcgen05Ring, Proxy::kAsync>(*this);
    }

    // Called by the thread that issues the mma.
    template <Proxy kReader>
    __device__ __forceinline__ void consumer_release(u32 stage) {
        static_assert(kReader == Proxy::kAsync, "only tcgen05.mma reads the stages");
        tcgen05_commit(this->empty[stage]);
    }
};

}  // namespace tmaasync
