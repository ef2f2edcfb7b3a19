#pragma once

#include <tmaasync/check.cuh>

namespace tmaasync {

// The state of a pipeline (ring buffer) of kStages stages: the stage, and the parity of its phase.
// A consumer waits on full[index] with `phase`; a producer waits on empty[index] with `phase`, and
// starts with parity 1, which a fresh barrier passes at once: the first pass needs no special case.
template <int kStages>
struct PipelineState {
    static_assert(kStages >= 0, "a pipeline has 0 or more stages");

    u32 index = 0;
    u32 phase = 0;
    u32 count = 0;

    __device__ static constexpr PipelineState for_consumer() { return {0, 0, 0}; }
    __device__ static constexpr PipelineState for_producer() { return {0, 1, 0}; }

    // Step to the next stage; the phase toggles when the index wraps around. A pipeline without
    // stages stays where it is.
    __device__ __forceinline__ void step() {
        if constexpr (kStages > 0) {
            check_index("index", index, kStages);
            check_index("phase", phase, 2);
            ++count;
            if (++index == kStages) {
                index = 0;
                phase ^= 1;
            }
        }
    }

    // Advance by this many stages.
    __device__ __forceinline__ void advance(u32 stages) {
        if constexpr (kStages > 0) {
            count += stages;
            index += stages;
            phase ^= index / kStages & 1;
            index %= kStages;
        }
    }

    // Step, and return the new state.
    __device__ __forceinline__ PipelineState next() {
        step();
        return *this;
    }
};

}  // namespace tmaasync
