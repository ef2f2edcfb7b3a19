#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/structured/ring_stages.cuh>
#include <tmaasync/structured/stage_range.cuh>

namespace tmaasync {

// The producer side of a ring, used by one thread of the CTA; with ThreadStage by each of
// ProducerThreads.
template <typename Ring, typename StageType = ProducerStage<Ring>>
class RingProducer {
public:
    using Stage = StageType;

    __device__ __forceinline__ explicit RingProducer(Ring& ring) : ring_(ring) {}
    RingProducer(const RingProducer&) = delete;
    RingProducer& operator=(const RingProducer&) = delete;

    // The next stages, for a range-based for loop: each iteration waits for its stage and expects
    // its bytes. A ThreadStage is committed at the end of the loop body.
    __device__ __forceinline__ StageRange<RingProducer> produce(
        int count, WaitLocation location = {}
    ) {
        return {*this, count, location};
    }

    // Wait for the next stage, and expect this many bytes; 0 if threads fill the ring.
    __device__ __forceinline__ Stage
    acquire(u32 bytes = Ring::kStageBytes, WaitLocation location = {}) {
        constexpr bool kExpects = Ring::MulticastGroup::kIsLoadedByTma;
        check(kExpects || bytes == 0, "bytes", bytes, "threads fill the ring, so it must be", 0);
        return acquire_bytes(0, bytes, location);
    }

    // Wait for the next stage, and write a message to its consumers into the ring's side.
    template <typename Message>
    [[nodiscard]] __device__ __forceinline__ Stage acquire_with(
        const Message& message, u32 bytes = Ring::kStageBytes, WaitLocation location = {}
    ) {
        static_assert(Ring::MulticastGroup::kIsLoadedByTma, "threads write what lies next to it");
        const u32 index = state_.index;
        ring_.empty[index].wait(state_.phase, location);
        // The arrival after it publishes the message.
        ring_.side[index] = message;
        ring_.full[index].expect_bytes(bytes);
        state_.step();
        return {ring_, index, 0};
    }

    // Return whether acquire() would return at once (CUTLASS's producer_try_acquire). May suspend
    // the thread for a bounded time.
    __device__ __forceinline__ bool can_acquire(WaitLocation location = {}) const {
        return ring_.empty[state_.index].try_wait(state_.phase, location);
    }

    // Wait until all stages are released. With multicast, call it after the last stage.
    __device__ __forceinline__ void drain(WaitLocation location = {}) {
        ring_.producer_tail(state_, location);
    }

private:
    friend class StageRange<RingProducer>;

    __device__ __forceinline__ Stage acquire_next(int iteration, const WaitLocation& location) {
        return acquire_bytes(iteration, Ring::kStageBytes, location);
    }

    __device__ __forceinline__ Stage
    acquire_bytes(int iteration, u32 bytes, const WaitLocation& location) {
        ring_.producer_acquire(state_, bytes, location);
        const u32 index = state_.index;
        state_.step();
        return {ring_, index, iteration};
    }

    Ring& ring_;
    typename Ring::State state_ = Ring::State::for_producer();
};

}  // namespace tmaasync
