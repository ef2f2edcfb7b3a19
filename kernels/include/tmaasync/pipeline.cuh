#pragma once

#include <tmaasync/check.cuh>

namespace tmaasync {

// The state of a pipeline (ring buffer) of kStages stages: stage index, and parity of its phase.
// A consumer waits on full[index] with `phase`, a producer on empty[index]. A producer starts with
// parity 1, on which a fresh barrier returns at once: the first pass needs no special case.
template <int kStages>
struct PipelineState {
    static_assert(kStages >= 0, "a pipeline has 0 or more stages");

    u32 index = 0;
    u32 phase = 0;
    u32 count = 0;

    __device__ static constexpr PipelineState for_consumer() { return {0, 0, 0}; }
    __device__ static constexpr PipelineState for_producer() { return {0, 1, 0}; }

    // Step to the next stage; the phase toggles when the index wraps around. Without stages the
    // state does not change.
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

    // Advance by `stages` stages.
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
