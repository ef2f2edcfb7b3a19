#pragma once

#include <tmaasync/check.cuh>

namespace tmaasync {

// A place in a ring of kStages buffers: which stage, and the parity of the lap.
// A consumer waits on full[index] with `phase`; a producer waits on empty[index] with `phase`, and
// starts with parity 1, which a fresh barrier passes at once: the first lap needs no special case.
template <int kStages>
struct PipelineState {
    static_assert(kStages >= 1, "a ring has at least one stage");

    u32 index = 0;
    u32 phase = 0;
    u32 count = 0;

    __device__ static constexpr PipelineState for_consumer() { return {0, 0, 0}; }
    __device__ static constexpr PipelineState for_producer() { return {0, 1, 0}; }

    // Moves to the next stage; the phase flips when the ring wraps around.
    __device__ __forceinline__ void step() {
        check_index("index", index, kStages);
        check_index("phase", phase, 2);
        ++count;
        if (++index == kStages) {
            index = 0;
            phase ^= 1;
        }
    }

    // Moves on by so many stages.
    __device__ __forceinline__ void advance(u32 stages) {
        count += stages;
        index += stages;
        phase ^= index / kStages & 1;
        index %= kStages;
    }

    // Steps, and returns the new place.
    __device__ __forceinline__ PipelineState next() {
        step();
        return *this;
    }
};

}  // namespace tmaasync
