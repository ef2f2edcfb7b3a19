#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/structured/ring_groups.cuh>
#include <tmaasync/structured/ring_stages.cuh>
#include <tmaasync/structured/stage_range.cuh>

namespace tmaasync {

// The consumer side of a ring, used by all threads of a warp together.
template <typename Ring, Proxy kReader>
class RingConsumer {
public:
    using Stage = ConsumerStage<Ring, kReader>;

    __device__ __forceinline__ explicit RingConsumer(Ring& ring) : ring_(ring) {}
    RingConsumer(const RingConsumer&) = delete;
    RingConsumer& operator=(const RingConsumer&) = delete;

    // The next stages, for a range-based for loop: each iteration waits for its stage, and releases
    // it at the end of the loop body unless another handle has taken it.
    __device__ __forceinline__ StageRange<RingConsumer> consume(
        int count, WaitLocation location = {}
    ) {
        return {*this, count, location};
    }

    // Wait for the next stage.
    __device__ __forceinline__ Stage acquire(WaitLocation location = {}) {
        return acquire_next(0, location);
    }

    // Return whether acquire() would return at once (CUTLASS's consumer_try_wait). May suspend the
    // thread for a bounded time.
    __device__ __forceinline__ bool can_acquire(WaitLocation location = {}) const {
        return ring_.full[state_.index].try_wait(state_.phase, location);
    }

    // A handle without a stage, for a deferred release: see ConsumerStage::take.
    __device__ __forceinline__ Stage none() {
        static_assert(
            Ring::kStages >= 2, "a stage whose release is deferred needs another one after it"
        );
        return Stage(ring_);
    }

    // Skip stages that other consumers release (ping-pong).
    __device__ __forceinline__ void skip(u32 stages) { state_.advance(stages); }

    // --- without scopes: main loops compute descriptors before they wait, and release by index ---

    // The next stage: its index, its tiles and its side data. The data may not have landed yet.
    __device__ __forceinline__ u32 index() const { return state_.index; }
    __device__ __forceinline__ typename Ring::Stage& peek() const {
        return ring_.stages[state_.index];
    }
    __device__ __forceinline__ auto& peek_side() const { return ring_.side[state_.index]; }

    // Wait until the next stage has landed.
    __device__ __forceinline__ void wait(WaitLocation location = {}) const {
        ring_.consumer_wait(state_, location);
    }

    // Step to the following stage. The previous stage stays held until release(its index).
    __device__ __forceinline__ void step() { state_.step(); }
    template <Proxy kStageReader = kReader>
    __device__ __forceinline__ void release(u32 index) {
        ring_.template consumer_release<kStageReader>(index);
    }

private:
    friend class StageRange<RingConsumer>;

    __device__ __forceinline__ Stage acquire_next(int iteration, const WaitLocation& location) {
        ring_.consumer_wait(state_, location);
        const u32 index = state_.index;
        state_.step();
        return {ring_, index, iteration};
    }

    Ring& ring_;
    typename Ring::State state_ = Ring::State::for_consumer();
};

}  // namespace tmaasync
