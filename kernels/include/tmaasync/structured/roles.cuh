#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/cluster.cuh>
#include <tmaasync/role_name.cuh>
#include <tmaasync/structured/register_split.cuh>
#include <tmaasync/warp.cuh>

// Warp specialisation (Bauer et al. 2011; CUTLASS's KernelTmaWarpSpecialized): a producer warpgroup
// issues copies, and consumer warpgroups multiply.
namespace tmaasync {

// The default exchange of a cluster: its CTAs share loads by multicast, and nothing else.
template <int kClusterCtas>
struct NoExchange {
    // CTAs that share loads.
    static constexpr int kSharingCtas = kClusterCtas;
    // Whether no CTA accesses the shared memory of another one after join().
    static constexpr bool kEndsAccesses = false;

    // Take part in the cluster's synchronisations that the consumers call.
    __device__ __forceinline__ static void join() {}
};

// The roles of a CTA's warpgroups: warpgroup 0 is the producer, and one of its threads issues all
// loads; the others are consumers. The kernel has __launch_bounds__(kThreads, 1) and is launched
// with kThreads threads, in clusters of kClusterCtas CTAs. The consumers of a cluster may also
// exchange data, as in SplitKExchange: the producer joins them after its loads. A debug build
// reports a launch of another size.
template <
    int kConsumerWarpgroups,
    typename Registers = DefaultRegisterSplit<kConsumerWarpgroups>,
    int kClusterCtas = 1,
    typename Exchange = NoExchange<kClusterCtas>>
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
        kClusterCtas >= 1 && kClusterCtas <= 16 && kClusterCtas % Exchange::kSharingCtas == 0,
        "a cluster has 1 to 16 CTAs, in groups of one size that share loads"
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
            Exchange::join();
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
        if constexpr (Exchange::kSharingCtas == 1) {
            __syncthreads();
        } else {
            cluster_sync();
        }
    }

    // No CTA leaves while a peer may still write into its shared memory or arrive on its barriers.
    __device__ __forceinline__ static void leave_cluster() {
        if constexpr (kClusterCtas > 1 && !Exchange::kEndsAccesses) cluster_sync();
    }
};

}  // namespace tmaasync
