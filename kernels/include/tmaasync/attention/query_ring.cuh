#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/warp.cuh>

// The hand-over of tiles in attention: the producer sends each consumer warpgroup its rows of
// queries, and a message that describes the tile.
namespace tmaasync {

template <typename Ring>
class QueryProducer;
template <typename Ring>
class QueryConsumer;

// The number of a tile in a ring, which determines its slot, its buffer and its phase. There are
// more slots for messages than buffers for queries: a message is read until the output leaves,
// when the queries of the next tile are in use already.
template <int kBuffers>
struct QueryState {
    static constexpr int kSlots = 2 * kBuffers;

    u32 slot = 0;

    __device__ __forceinline__ u32 buffer() const { return slot % kBuffers; }
    __device__ __forceinline__ u32 phase() const { return slot / kBuffers; }
    __device__ __forceinline__ QueryState before(u32 tiles) const {
        return {(slot + kSlots - tiles) % kSlots};
    }
    __device__ __forceinline__ void step() { slot = (slot + 1) % kSlots; }
};

// A ring of kBufferCount tiles of queries, one QueryTile for each of kConsumerCount consumer
// warpgroups, with a message for every tile. Each warpgroup releases its own queries. Make it a
// member of the CTA's shared memory; one thread calls init().
template <typename QueryTile, typename MessageType, int kBufferCount, int kConsumerCount>
struct QueryRing {
    using Tile = QueryTile;
    using Message = MessageType;
    using State = QueryState<kBufferCount>;
    static constexpr int kBuffers = kBufferCount;
    static constexpr int kConsumers = kConsumerCount;
    static constexpr int kConsumerWarps = 4;

    // A message, or the end of all tiles.
    struct Slot {
        Message message;
        bool is_end;
    };

    typename Tile::Shared queries[kBuffers][kConsumers];
    Slot slots[State::kSlots];
    SharedMemBarrier full[kBuffers][kConsumers];
    SharedMemBarrier empty[kBuffers][kConsumers];

    // Initialise the barriers, by one thread.
    __device__ __forceinline__ void init() {
        for (int buffer = 0; buffer < kBuffers; ++buffer) {
            for (int consumer = 0; consumer < kConsumers; ++consumer) {
                full[buffer][consumer].init(1);
                empty[buffer][consumer].init(kConsumerWarps);
            }
        }
        fence_barrier_init();
    }

    // Release a consumer's queries, which wgmma has read: by every warp of the warpgroup, or by one
    // thread for all.
    __device__ __forceinline__ void consumer_release(u32 buffer, int consumer) {
        if (lane_index() == 0) empty[buffer][consumer].arrive();
    }
    __device__ __forceinline__ void consumer_release_by_one_thread(u32 buffer, int consumer) {
        empty[buffer][consumer].arrive(kConsumerWarps);
    }

    // The ring as one producer thread sees it.
    [[nodiscard]] __device__ __forceinline__ QueryProducer<QueryRing> producer() {
        return QueryProducer<QueryRing>(*this);
    }

    // The ring as a consumer warpgroup sees it, counted from 0.
    [[nodiscard]] __device__ __forceinline__ QueryConsumer<QueryRing> consumer(int index) {
        return QueryConsumer<QueryRing>(*this, index);
    }
};

template <typename Ring>
class QueryProducer {
public:
    using Message = typename Ring::Message;
    using Tile = typename Ring::Tile;

    __device__ __forceinline__ explicit QueryProducer(Ring& ring) : ring_(ring) {}

    // Hand a tile over once every consumer has released the queries before, and load the queries
    // of each consumer by load(shared, full, consumer).
    template <typename Load>
    __device__ __forceinline__ void produce(const Message& message, const Load& load) {
        hand_over({message, false});
        const u32 buffer = state_.buffer();
        for (int consumer = 0; consumer < Ring::kConsumers; ++consumer) {
            SharedMemBarrier& full = ring_.full[buffer][consumer];
            full.expect_bytes(Tile::kBytes);
            load(ring_.queries[buffer][consumer], full, consumer);
        }
        state_.step();
    }

    // Tell all consumers that there is no tile any more.
    __device__ __forceinline__ void end() {
        hand_over({{}, true});
        for (auto& full : ring_.full[state_.buffer()]) full.arrive();
    }

private:
    __device__ __forceinline__ void hand_over(const typename Ring::Slot& slot) {
        for (auto& empty : ring_.empty[state_.buffer()]) empty.wait(state_.phase() ^ 1);
        ring_.slots[state_.slot] = slot;
    }

    Ring& ring_;
    typename Ring::State state_;
};

// The consumer warpgroup's side of a ring. `before` counts tiles before the one taken last, up to
// Ring::kBuffers - 1.
template <typename Ring>
class QueryConsumer {
public:
    using Message = typename Ring::Message;
    using Queries = typename Ring::Tile::Shared;

    __device__ __forceinline__ QueryConsumer(Ring& ring, int index) : ring_(ring), index_(index) {}

    // Take the next tile: wait until its queries have landed.
    __device__ __forceinline__ void take() {
        ring_.full[next_.buffer()][index_].wait(next_.phase());
        // One lane releases the queries for its warp: no other may still be waiting for them.
        __syncwarp();
        next_.step();
    }

    __device__ __forceinline__ const Message& message(u32 before = 0) const {
        return ring_.slots[next_.before(1 + before).slot].message;
    }
    __device__ __forceinline__ bool is_end() const {
        return ring_.slots[next_.before(1).slot].is_end;
    }
    __device__ __forceinline__ Queries& queries() const {
        return ring_.queries[next_.before(1).buffer()][index_];
    }

    // Release the queries, which wgmma has read. Called by every warp.
    __device__ __forceinline__ void release() const {
        ring_.consumer_release(next_.before(1).buffer(), index_);
    }

private:
    Ring& ring_;
    int index_;
    typename Ring::State next_;  // of the tile that is taken next
};

}  // namespace tmaasync
