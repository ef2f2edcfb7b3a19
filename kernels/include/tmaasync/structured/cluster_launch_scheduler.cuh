#pragma once

#include <tmaasync/cluster_launch_control.cuh>
#include <tmaasync/pipeline.cuh>
#include <tmaasync/structured/schedule.cuh>
#include <tmaasync/warp.cuh>

// The persistent scheduler of sm_100a, 103a and 120a (CUTLASS's PersistentTileSchedulerSm100). The
// grid has a cluster for each tile. A running cluster computes its own tile, and then the tiles of
// clusters that it cancels; when the chip starts clusters itself, for example on SMs that another
// kernel has left, it has fewer to give.
namespace tmaasync {

// Requests in flight, in the shared memory of each CTA of a cluster. One thread of the cluster
// asks; kReaders are the threads and warps, of all CTAs, that iterate over the scheduler.
template <int kStages, int kReaders, int kCtas = 1>
struct ClusterRequests {
    static constexpr int kRequests = kStages;
    static constexpr Scope kScope = kCtas == 1 ? Scope::kCta : Scope::kCluster;

    ClusterRequest requests[kStages];
    SharedMemBarrier taken[kStages];  // of the first CTA: every reader has the answer

    // By one thread; then a barrier of the CTA, or of the cluster.
    __device__ void init() {
        for (int i = 0; i < kStages; ++i) {
            requests[i].init();
            taken[i].init(kReaders);
        }
        fence_barrier_init();
    }

    // Ask for clusters until none is left, by one thread of the cluster's first CTA.
    __device__ void ask() {
        auto state = PipelineState<kStages>::for_producer();
        for (;; state.step()) {
            ClusterRequest& request = requests[state.index];
            taken[state.index].template wait_acquire<kScope>(state.phase);
            if constexpr (kCtas == 1) {
                request.ask();
            } else {
                for (u32 cta = 0; cta < kCtas; ++cta) {
                    request.answered.arrive_and_expect_bytes(ClusterRequest::kBytes, cta);
                }
                request.ask_for_all();
            }
            // A request after a known failure is undefined.
            if (!request.wait(state.phase ^ 1).exists) return;
        }
    }

    // Give a stage back to the thread that asks.
    __device__ __forceinline__ void release(u32 stage) {
        if constexpr (kCtas == 1) {
            taken[stage].arrive();
        } else {
            taken[stage].arrive_cluster(0);
        }
    }
};

// Every thread or warp that iterates waits for the same answers. by_warps() is the scheduler for
// roles whose whole warps iterate: a warp counts as one reader.
template <typename Tiles, typename Requests, bool kByWarps = false>
struct ClusterLaunchScheduler : Schedule<ClusterLaunchScheduler<Tiles, Requests, kByWarps>> {
    using Cluster = typename Tiles::Cluster;

    Tiles tiles;
    Requests* requests;
    int index;
    PipelineState<Requests::kRequests> state;

    __device__ __forceinline__ ClusterLaunchScheduler(const Tiles& tiles, Requests& requests)
        : tiles(tiles),
          requests(&requests),
          index(Cluster::index()),
          state(PipelineState<Requests::kRequests>::for_consumer()) {}

    __device__ __forceinline__ auto by_warps() const {
        return ClusterLaunchScheduler<Tiles, Requests, true>(tiles, *requests);
    }

    __device__ __forceinline__ bool done() const { return index < 0; }

    __device__ __forceinline__ void step() {
        const CanceledCluster next = requests->requests[state.index].wait(state.phase);
        index = next.exists ? static_cast<int>(next.first.x) / Cluster::kCtas : -1;
        if constexpr (kByWarps) __syncwarp();
        if (!kByWarps || lane_index() == 0) requests->release(state.index);
        state.step();
    }

    __device__ __forceinline__ auto tile() const { return tiles.at(index); }
};

}  // namespace tmaasync
