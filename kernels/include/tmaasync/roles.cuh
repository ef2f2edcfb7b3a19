#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/role_name.cuh>
#include <tmaasync/warp.cuh>

// Warp specialisation (Bauer et al. 2011; CUTLASS's KernelTmaWarpSpecialized): one warpgroup issues
// copies, the others multiply.
namespace tmaasync {

// Registers that a producer thread keeps and a consumer thread claims (setmaxnreg). 0 for both
// leaves all as they are. RegisterSplit on the host computes numbers that fit and explains them.
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

    // Registers per thread with which a CTA of one producer warpgroup and kConsumers others starts:
    // the compiler takes them from __launch_bounds__(threads, 1), at most what consumers claim.
    __device__ static constexpr int launch_registers(int consumers) {
        const int most = min_of(64 * 1024 / (128 * (1 + consumers)) / 8 * 8, 256);
        return kIsOff ? most : min_of(most, kConsumer);
    }

    // Whether these consumers and one producer have no more registers than the CTA starts with.
    // Else a claim waits for ever.
    __device__ static constexpr bool fits(int consumers) {
        const int launched = launch_registers(consumers);
        return kProducer <= launched &&
               kProducer + consumers * kConsumer <= (1 + consumers) * launched;
    }

private:
    __device__ static constexpr int min_of(int a, int b) { return a < b ? a : b; }
};

// The split of most GEMMs: the producer keeps 40 registers, which multicast loads need, or the
// rest; consumers claim the rest, up to 232.
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

// The roles of a CTA's warpgroups: warpgroup 0 is the producer, of which one thread issues all
// loads; the others are consumers. The kernel has __launch_bounds__(kThreads, 1) and is launched
// with kThreads threads, in clusters of kClusterCtas CTAs. kSplitK of them split K; the others
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

    // Run the roles, by all threads of the CTA:
    //   thread 0 prefetches the descriptors of `tiles` and calls shared.init(), which initialises
    //   the barriers; then all of the CTA, or the cluster, synchronise;
    //   one thread of the producer calls produce(), after the grids before this one have finished;
    //   every consumer warpgroup calls consume(consumer), with its number from 0. A consumer that
    //   itself reads what an earlier grid wrote calls wait_for_previous_grids() first;
    //   no CTA of a cluster exits before all have finished.
    template <typename Shared, typename Produce, typename Consume, typename... Tiles>
    __device__ __forceinline__ static void run(
        Shared& shared, Produce produce, Consume consume, const Tiles&... tiles
    ) {
        run_with_helpers(shared, produce, [](int) {}, consume, tiles...);
    }

    // The same, where the other three warps of the producer have work, too: each calls
    // help(number), with its number from 0. A helper waits for the grids before this one itself.
    template <typename Shared, typename Produce, typename Help, typename Consume, typename... Tiles>
    __device__ __forceinline__ static void run_with_helpers(
        Shared& shared, Produce produce, Help help, Consume consume, const Tiles&... tiles
    ) {
        if constexpr (kIsDebug) check_launch();
        const int warpgroup = warpgroup_index();
        name_role(warpgroup);
        // The next grid may initialise its barriers while this one works.
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

    // The barriers of all CTAs that multicast to this one are initialised.
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

// Ping-pong scheduling: kConsumers warpgroups issue their MMAs one after the other, so that the
// epilogue or softmax of one overlaps the MMAs of another (CUTLASS's
// KernelTmaWarpSpecializedPingpong and OrderedSequenceBarrier; FlashAttention-3, section 3.1).
// Consumer i waits at named barrier kFirstBarrier + i; the barriers before that belong to one
// consumer each, and to __syncthreads.
template <int kConsumers>
struct MmaOrder {
    static constexpr u32 kFirstBarrier = 1 + kConsumers;
    static constexpr int kTwoWarpgroups = 2 * 128;  // the one that waits and the one that arrives

    __device__ __forceinline__ static void wait(int consumer) {
        if constexpr (kConsumers > 1) NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.sync();
    }

    // Lets the consumer of this number pass its wait.
    __device__ __forceinline__ static void release(int consumer) {
        if constexpr (kConsumers > 1) {
            NamedBarrier<kTwoWarpgroups>{kFirstBarrier + consumer}.arrive();
        }
    }
};

}  // namespace tmaasync
