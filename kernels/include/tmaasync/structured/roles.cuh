#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/role_name.cuh>
#include <tmaasync/warp.cuh>

// Warp specialisation (Bauer et al. 2011; CUTLASS's KernelTmaWarpSpecialized): a producer warpgroup
// issues copies, and consumer warpgroups multiply.
namespace tmaasync {

// Registers that a producer thread keeps and a consumer thread claims (setmaxnreg). 0 for both
// means no setmaxnreg. RegisterSplit on the host computes and explains numbers that fit.
template <int kProducer, int kConsumer>
struct RegisterSplit {
    static constexpr int kProducerRegisters = kProducer;
    static constexpr int kConsumerRegisters = kConsumer;
    static constexpr bool kIsOff = kProducer == 0 && kConsumer == 0;

    static_assert(
        kIsOff || (kProducer % 8 == 0 && kProducer >= 24 && kProducer <= 256),
        "setmaxnreg takes multiples of 8 from 24 to 256"
    );
    static_assert(
        kIsOff || (kConsumer % 8 == 0 && kConsumer >= 24 && kConsumer <= 256),
        "setmaxnreg takes multiples of 8 from 24 to 256"
    );

    // Initial registers per thread of a CTA with one producer and `consumers` consumer warpgroups:
    // the compiler derives them from __launch_bounds__(threads, 1); at most the consumers' claim.
    __device__ static constexpr int launch_registers(int consumers) {
        const int most = min_of(64 * 1024 / (128 * (1 + consumers)) / 8 * 8, 256);
        return kIsOff ? most : min_of(most, kConsumer);
    }

    // Whether these consumers and one producer need no more registers than the CTA starts with.
    // Otherwise a claim waits forever.
    __device__ static constexpr bool fits(int consumers) {
        const int launched = launch_registers(consumers);
        return kProducer <= launched &&
               kProducer + consumers * kConsumer <= (1 + consumers) * launched;
    }

private:
    __device__ static constexpr int min_of(int a, int b) { return a < b ? a : b; }
};

// The default split of GEMMs: the producer keeps at most 40 registers, enough for multicast loads;
// consumers claim the rest, up to 232.
template <int kConsumers>
struct DefaultRegisterSplitOf {
    static constexpr int kAll =
        (1 + kConsumers) * RegisterSplit<0, 0>::launch_registers(kConsumers);
    static constexpr int kShare = (kAll - 24) / kConsumers / 8 * 8;
    static constexpr int kConsumer = kShare < 232 ? kShare : 232;
    static constexpr int kLeft = kAll - kConsumers * kConsumer;
    static constexpr int kProducer = kLeft < 40 ? kLeft : 40;
    using type = RegisterSplit<kProducer, kConsumer>;
};
template <int kConsumers>
using DefaultRegisterSplit = typename DefaultRegisterSplitOf<kConsumers>::type;

// The roles of a CTA's warpgroups: warpgroup 0 is the producer, and one of its threads issues all
// loads; the others are consumers. The kernel has __launch_bounds__(kThreads, 1) and is launched
// with kThreads threads, in clusters of kClusterCtas CTAs. kSplitK of these split K; the others
// share loads by multicast. A debug build reports a launch of another size.
template <
    int kConsumerWarpgroups,
    typename Registers = DefaultRegisterSplit<kConsumerWarpgroups>,
    int kClusterCtas = 1,
    int kSplitK = 1>
struct WarpSpecialized {
    static constexpr int kConsumers = kConsumerWarpgroups;
    static constexpr int kThreads = (1 + kConsumers) * 128;
    static constexpr int kConsumerWarps = kConsumers * 4;

    static_assert(kConsumers >= 1 && kThreads <= 1024, "a CTA has 1 to 7 consumer warpgroups");
    static_assert(
        Registers::fits(kConsumers),
        "the CTA does not have these registers, so that setmaxnreg.inc would wait for ever: use "
        "DefaultRegisterSplit, or numbers of tmaasync.RegisterSplit.fit"
    );
    static_assert(
        kSplitK >= 1 && kClusterCtas % kSplitK == 0 && kClusterCtas <= 16,
        "a cluster has 1 to 16 CTAs, the same number for every share of K"
    );

    // Run the roles; called by all threads of the CTA:
    //   thread 0 prefetches the descriptors of `tiles` and calls shared.init(), which initialises
    //   the barriers; then the CTA, or the cluster, synchronises;
    //   one thread of the producer calls produce(), after all earlier grids have finished;
    //   every consumer warpgroup calls consume(consumer), with its index from 0. A consumer that
    //   itself reads the output of an earlier grid calls wait_for_previous_grids() first;
    //   no CTA of a cluster exits before all have finished.
    template <typename Shared, typename Produce, typename Consume, typename... Tiles>
    __device__ __forceinline__ static void run(
        Shared& shared, Produce produce, Consume consume, const Tiles&... tiles
    ) {
        run_with_helpers(shared, produce, [](int) {}, consume, tiles...);
    }

    // The same, but the producer's other three warps work too: each calls help(index), with its
    // index from 0. A helper must wait for earlier grids itself.
    template <typename Shared, typename Produce, typename Help, typename Consume, typename... Tiles>
    __device__ __forceinline__ static void run_with_helpers(
        Shared& shared, Produce produce, Help help, Consume consume, const Tiles&... tiles
    ) {
        if constexpr (kIsDebug) check_launch();
        const int warpgroup = warpgroup_index();
        name_role(warpgroup);
        // The next grid may initialise its barriers while this grid runs.
        launch_dependent_grids();
        if (threadIdx.x == 0) {
            (tiles.prefetch_descriptor(), ...);
            shared.init();
        }
        enter_cluster();
        if (warpgroup == 0) {
            release_registers<Registers::kProducerRegisters>();
            const int warp = warp_index();
            if (warp > 0) {
                help(warp - 1);
            } else if (elect()) {
                wait_for_previous_grids();
                produce();
            }
            join_split_k();
        } else {
            claim_registers<Registers::kConsumerRegisters>();
            consume(warpgroup - 1);
        }
        leave_cluster();
    }

private:
    __device__ static void check_launch() {
        const int threads = blockDim.x * blockDim.y * blockDim.z;
        check(threads == kThreads, "threads per CTA", threads, "the roles need", kThreads);
        const int ctas = blocks_in_cluster();
        check(ctas == kClusterCtas, "CTAs per cluster", ctas, "the roles need", kClusterCtas);
    }

    // For reports and timelines.
    __device__ __forceinline__ static void name_role(int warpgroup) {
        if (warpgroup == 0) {
            set_role("producer");
        } else {
            set_role("consumer", warpgroup - 1);
        }
    }

    // Wait until the barriers of all CTAs in the multicast group are initialised.
    __device__ __forceinline__ static void enter_cluster() {
        if constexpr (kClusterCtas == kSplitK) {
            __syncthreads();
        } else {
            cluster_sync();
        }
    }

    // The producer takes part in the two cluster_sync() of SplitKReduction.
    __device__ __forceinline__ static void join_split_k() {
        if constexpr (kSplitK > 1) {
            cluster_sync();
            cluster_sync();
        }
    }

    // No CTA leaves while a peer may still write into its shared memory or arrive on its barriers.
    // With split-K the last cluster_sync() of the consumers has ensured it.
    __device__ __forceinline__ static void leave_cluster() {
        if constexpr (kClusterCtas > 1 && kSplitK == 1) cluster_sync();
    }
};

// Ping-pong scheduling: kConsumers warpgroups issue their MMAs in a fixed order, so that the
// epilogue or softmax of one overlaps the MMAs of another (CUTLASS's
// KernelTmaWarpSpecializedPingpong and OrderedSequenceBarrier; FlashAttention-3, section 3.1).
// Consumer i waits at named barrier kFirstBarrier + i. Barrier 0 belongs to __syncthreads, and the
// barriers from 1 to kConsumers to one consumer each.
template <int kConsumers>
struct MmaOrder {
    static constexpr u32 kFirstBarrier = 1 + kConsumers;
    static constexpr int kTwoWarpgroups = 2 * 128;  // one waits, the other arrives

    __device__ __forceinline__ static void wait(int consumer) {
        if constexpr (kConsumers > 1) NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.sync();
    }

    // Let this consumer pass its wait.
    __device__ __forceinline__ static void release(int consumer) {
        if constexpr (kConsumers > 1) {
            NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.arrive();
        }
    }
};

}  // namespace tmaasync
