#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/cp_async.cuh>
#include <tmaasync/pipeline.cuh>
#include <tmaasync/ring_groups.cuh>
#include <tmaasync/stage_range.cuh>
#include <tmaasync/tile.cuh>
#include <tmaasync/warp.cuh>

// A producer-consumer pipeline that owns its stages (CUTLASS's PipelineTmaAsync, with the buffers).
namespace tmaasync {

// The side of a ring without side data.
struct NoSide {};

// Maximum dynamic shared memory of a CTA on sm_90.
constexpr int kMaxSharedBytes = 227 * 1024;

template <typename Ring>
class ProducerStage;
template <typename Ring, Writes kWrites>
class ThreadStage;
template <typename Ring, typename StageType = ProducerStage<Ring>>
class RingProducer;
template <typename Ring, Proxy kReader>
class RingConsumer;

// A ring buffer of kStages stages, each with a full and an empty barrier. Make it a member of the
// CTA's shared memory. One thread calls init(); then the CTA, or with multicast the cluster,
// synchronises. The producer thread and the consumer warps iterate over the stages with the objects
// of producer() and consumer(), or with their own PipelineState and the functions named as in
// PipelineTmaAsync. With ProducerThreads<n> instead of Multicast, n threads fill the stages, each
// with its own object of thread_producer(). side[i] belongs to stage i: data with a smaller
// alignment, such as scales, which would pad the stages. Its bytes are not in kStageBytes. The rows
// of the block's threads are whole warps: blockDim.x is a multiple of 32, or the block has one row.
template <
    typename StageType,
    int kStageCount,
    typename Consumers,
    typename Group = Multicast<1>,
    typename Side = NoSide>
struct Ring {
    using Stage = StageType;
    using State = PipelineState<kStageCount>;
    using MulticastGroup = Group;
    static constexpr int kStages = kStageCount;
    static constexpr u32 kStageBytes = Group::template kStageBytes<Stage>;
    static_assert(kStages >= 1, "a ring has at least one stage");
    static_assert(kStageBytes <= SharedMemBarrier::kMaxCount, "a phase expects less than 1 MiB");
    static_assert(
        sizeof(Stage) * kStages <= kMaxSharedBytes, "the stages exceed the shared memory of a CTA"
    );

    Stage stages[kStages];
    SharedMemBarrier full[kStages];
    SharedMemBarrier empty[kStages];
    Side side[kStages];

    // Initialise the barriers; called by one thread.
    __device__ __forceinline__ void init() {
        if constexpr (kIsDebug) {
            check_cluster();
            if (blockDim.y * blockDim.z > 1) check_multiple("blockDim.x", blockDim.x, 32);
        }
        for (int stage = 0; stage < kStages; ++stage) {
            full[stage].init(Group::kProducerThreads);
            // One lane per warp that reads a stage, in every CTA to which this CTA multicasts.
            empty[stage].init(Consumers::kWarps * Group::kCtas);
        }
        fence_barrier_init();
    }

    // The producer's view of the stages: one object per CTA, for the lifetime of the ring.
    [[nodiscard]] __device__ __forceinline__ RingProducer<Ring> producer() {
        static_assert(Group::kIsLoadedByTma, "ProducerThreads fill the ring: thread_producer()");
        return RingProducer<Ring>(*this);
    }

    // The view of the stages for one of ProducerThreads: one object per thread, for the lifetime
    // of the ring.
    template <Writes kWrites = Writes::kCpAsync>
    [[nodiscard]] __device__ __forceinline__ RingProducer<Ring, ThreadStage<Ring, kWrites>>
    thread_producer() {
        static_assert(
            !Group::kIsLoadedByTma, "TMA loads fill the ring: producer(), or ProducerThreads<n>"
        );
        return RingProducer<Ring, ThreadStage<Ring, kWrites>>(*this);
    }

    // A consumer warp's view of the stages: one object per thread, for the lifetime of the ring.
    template <Proxy kReader = Proxy::kGeneric>
    [[nodiscard]] __device__ __forceinline__ RingConsumer<Ring, kReader> consumer() {
        return RingConsumer<Ring, kReader>(*this);
    }

    // Wait until all consumers have released the stage, then expect the bytes of the TMA loads.
    __device__ __forceinline__ void producer_acquire(
        const State& state, u32 bytes = kStageBytes, WaitLocation location = {}
    ) {
        empty[state.index].wait(state.phase, location);
        if constexpr (Group::kIsLoadedByTma) full[state.index].expect_bytes(bytes);
    }

    // Arrive for a stage that this thread, one of ProducerThreads, has filled: once its copies have
    // landed, or after its ordinary stores.
    template <Writes kWrites>
    __device__ __forceinline__ void producer_commit(u32 stage) {
        if constexpr (kWrites == Writes::kCpAsync) {
            mbarrier_cp_async_arrive_noinc(full[stage]);
        } else {
            full[stage].arrive();
        }
    }

    // Wait until the copies into the stage have landed. If threads filled it, a proxy fence makes
    // their writes visible to TMA stores and wgmma of this thread.
    __device__ __forceinline__ void consumer_wait(
        const State& state, WaitLocation location = {}
    ) const {
        full[state.index].wait(state.phase, location);
        if constexpr (!Group::kIsLoadedByTma) fence_async_view_proxy();
    }

    // Release a stage that the warp has read, to the producer of every CTA that writes into it.
    // Called by the whole warp. The arrival must order ordinary reads. Reads by the async proxy are
    // already complete, and release.cluster would wait for all of the thread's memory traffic.
    template <Proxy kReader = Proxy::kGeneric>
    __device__ __forceinline__ void consumer_release(u32 stage) {
        if constexpr (kReader != Proxy::kAsync) __syncwarp();
        const u32 lane = lane_index();
        if constexpr (Group::kCtas == 1) {
            if (lane == 0) empty[stage].arrive();
        } else if constexpr (kReader == Proxy::kMixed) {
            const u32 rank = Group::rank();
            if (lane == rank) empty[stage].arrive();
            if (lane != rank && lane < Group::kCtas) {
                empty[stage].arrive_cluster_relaxed(Group::first_rank() + lane);
            }
        } else if constexpr (kReader == Proxy::kGeneric) {
            if (lane < Group::kCtas) empty[stage].arrive_cluster(Group::first_rank() + lane);
        } else {
            if (lane < Group::kCtas) {
                empty[stage].arrive_cluster_relaxed(Group::first_rank() + lane);
            }
        }
    }

    // Wait until all consumers in all CTAs of the group have released all stages. Afterwards a CTA
    // may exit: no peer writes into its stages or arrives on its barriers any more.
    __device__ __forceinline__ void producer_tail(State state, WaitLocation location = {}) {
        for (int stage = 0; stage < kStages; ++stage, state.step()) {
            empty[state.index].wait(state.phase, location);
        }
    }

private:
    __device__ __forceinline__ static void check_cluster() {
        if constexpr (Group::kCtas > 1) {
            constexpr int kCtas = Group::kCtas * Group::kGroups;
            check_range(
                "CTAs of the cluster, with a multicast ring,", blocks_in_cluster(), kCtas, kCtas
            );
        }
    }
};

// --- scopes --------------------------------------------------------------------------------------

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

// The producer side of a ring, used by one thread of the CTA; with ThreadStage by each of
// ProducerThreads.
template <typename Ring, typename StageType>
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
