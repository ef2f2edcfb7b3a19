#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/check.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/cp_async.cuh>
#include <tmaasync/operands/target.cuh>
#include <tmaasync/pipeline.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/structured/ring_consumer.cuh>
#include <tmaasync/structured/ring_groups.cuh>
#include <tmaasync/structured/ring_producer.cuh>
#include <tmaasync/warp.cuh>

// A producer-consumer pipeline that owns its stages (CUTLASS's PipelineTmaAsync, with the buffers).
namespace tmaasync {

// The side of a ring without side data.
struct NoSide {};

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
    template <Proxy kProxy = Proxy::kGeneric>
    __device__ __forceinline__ void consumer_release(u32 stage) {
        constexpr Proxy kReader = kHasWgmma ? kProxy : Proxy::kGeneric;  // ldmatrix
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

}  // namespace tmaasync
