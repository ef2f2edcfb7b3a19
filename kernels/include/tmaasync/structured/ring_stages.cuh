#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/structured/ring_groups.cuh>
#include <tmaasync/tile.cuh>

// Scopes that hold one stage of a ring.
namespace tmaasync {

// A stage that the producer fills: consumers wait until the expected bytes have landed.
template <typename Ring>
class [[nodiscard]] ProducerStage {
public:
    using Stage = typename Ring::Stage;
    using Group = typename Ring::MulticastGroup;

    __device__ __forceinline__ ProducerStage(Ring& ring, u32 index, int iteration)
        : ring_(ring), index_(index), iteration_(iteration) {}
    ProducerStage(const ProducerStage&) = delete;
    ProducerStage& operator=(const ProducerStage&) = delete;

    __device__ __forceinline__ Stage& operator*() const { return ring_.stages[index_]; }
    __device__ __forceinline__ Stage* operator->() const { return &ring_.stages[index_]; }

    // The barrier on which copies into this stage complete.
    __device__ __forceinline__ SharedMemBarrier& full() const { return ring_.full[index_]; }

    // Which stage of the ring this is: for data that lies next to the ring.
    __device__ __forceinline__ u32 index() const { return index_; }

    // Which stage of the loop this is, from 0.
    __device__ __forceinline__ int iteration() const { return iteration_; }

    // Load a tile that all CTAs of the group need: each CTA loads its share of the boxes and
    // multicasts it to all. Every CTA of the group calls it with the same coordinates.
    template <typename Tile>
    __device__ __forceinline__ void async_multicast_load(
        const Tile& tile,
        typename Tile::Shared& shared,
        Coordinates<Tile::kRank> at,
        CachePolicy policy = CachePolicy::kEvictNormal
    ) const {
        if constexpr (Group::kCtas == 1) {
            tile.async_copy(shared, full(), at, policy);
        } else {
            tile.template async_multicast_load_partitioned<Group::kCtas>(
                shared, full(), at, Group::cta_mask(), Group::rank(), policy
            );
        }
    }

private:
    Ring& ring_;
    u32 index_;
    int iteration_;
};

// A stage of which one of ProducerThreads fills a part. The end of the scope commits it: consumers
// wait until all threads have committed and their copies have landed.
template <typename Ring, Writes kWrites>
class [[nodiscard]] ThreadStage {
public:
    using Stage = typename Ring::Stage;

    __device__ __forceinline__ ThreadStage(Ring& ring, u32 index, int iteration)
        : ring_(ring), index_(index), iteration_(iteration) {}
    __device__ __forceinline__ ~ThreadStage() { commit_if_held(); }
    ThreadStage(const ThreadStage&) = delete;
    ThreadStage& operator=(const ThreadStage&) = delete;

    __device__ __forceinline__ Stage& operator*() const {
        check_held();
        return ring_.stages[index_];
    }
    __device__ __forceinline__ Stage* operator->() const { return &**this; }

    // Which stage of the ring this is: for data that lies next to the ring.
    __device__ __forceinline__ u32 index() const { return index_; }

    // Which stage of the loop this is, from 0.
    __device__ __forceinline__ int iteration() const { return iteration_; }

    // Commit the stage before the end of the scope.
    __device__ __forceinline__ void commit() {
        check_held();
        commit_if_held();
    }

    // Expect bytes of this thread's TMA loads into the same stage; return their barrier.
    __device__ __forceinline__ SharedMemBarrier& expect(u32 bytes) const {
        check_held();
        ring_.full[index_].expect_tx(bytes);
        return ring_.full[index_];
    }

private:
    __device__ __forceinline__ void commit_if_held() {
        if (is_held_) ring_.template producer_commit<kWrites>(index_);
        is_held_ = false;
    }

    __device__ __forceinline__ void check_held() const {
        check(is_held_, "stages held", 0, "the stage was committed; it must be", 1);
    }

    Ring& ring_;
    u32 index_;
    int iteration_;
    bool is_held_ = true;
};

// A full stage that a consumer warp reads. The end of the scope releases it.
template <typename Ring, Proxy kReader>
class [[nodiscard]] ConsumerStage {
public:
    using Stage = typename Ring::Stage;

    // A handle without a stage, or with a stage for which the warp has waited.
    __device__ __forceinline__ explicit ConsumerStage(Ring& ring) : ring_(ring) {}
    __device__ __forceinline__ ConsumerStage(Ring& ring, u32 index, int iteration)
        : ring_(ring), index_(index), iteration_(iteration), is_held_(true) {}
    __device__ __forceinline__ ~ConsumerStage() { release_if_held(); }
    ConsumerStage(const ConsumerStage&) = delete;
    ConsumerStage& operator=(const ConsumerStage&) = delete;

    __device__ __forceinline__ Stage& operator*() const {
        check_held();
        return ring_.stages[index_];
    }
    __device__ __forceinline__ Stage* operator->() const { return &**this; }

    // Which stage of the ring this is: for data that lies next to the ring.
    __device__ __forceinline__ u32 index() const { return index_; }

    // Which stage of the loop this is, from 0.
    __device__ __forceinline__ int iteration() const { return iteration_; }

    // Release the stage before the end of the scope.
    __device__ __forceinline__ void release() {
        check_held();
        release_if_held();
    }

    // Release the held stage, if any, and take over the other's. With one wgmma group in flight,
    // call it after wgmma_wait_group<1>(): the previous group has then read the released stage.
    __device__ __forceinline__ void take(ConsumerStage& other) {
        other.check_held();
        release_if_held();
        index_ = other.index_;
        iteration_ = other.iteration_;
        is_held_ = other.is_held_;
        other.is_held_ = false;
    }

private:
    __device__ __forceinline__ void release_if_held() {
        if (is_held_) ring_.template consumer_release<kReader>(index_);
        is_held_ = false;
    }

    __device__ __forceinline__ void check_held() const {
        check(is_held_, "stages held", 0, "the stage was released or taken; it must be", 1);
    }

    Ring& ring_;
    u32 index_ = 0;
    int iteration_ = 0;
    bool is_held_ = false;
};

}  // namespace tmaasync
