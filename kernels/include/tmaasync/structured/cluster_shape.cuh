#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/structured/ring_groups.cuh>

namespace tmaasync {

// The shape of a cluster: CTAs along M share the columns of B, and CTAs along N the rows of A. With
// split-K the cluster has kSplits of these groups, one per range of K. CTAs that share loads have
// adjacent ranks, along M first. <1> means no cluster.
template <int kCtasAlongM = 1, int kCtasAlongN = 1, int kSplits = 1>
struct ClusterShape {
    static constexpr int kM = kCtasAlongM;
    static constexpr int kN = kCtasAlongN;
    static constexpr int kSplitK = kSplits;
    static constexpr int kCtas = kM * kN * kSplitK;
    // The CTAs that share loads: the Group argument of a Ring.
    using Sharing = Multicast<kM * kN, kSplitK>;

    // This CTA's rank along M, along N, and among the splits of K.
    __device__ __forceinline__ static int rank_m() {
        if constexpr (kM == 1) return 0;
        if constexpr (kN == 1) return Sharing::rank();
        return Sharing::rank() % kM;
    }
    __device__ __forceinline__ static int rank_n() {
        if constexpr (kN == 1) return 0;
        if constexpr (kM == 1) return Sharing::rank();
        return Sharing::rank() / kM;
    }
    __device__ __forceinline__ static int split_rank() {
        if constexpr (kSplitK == 1) return 0;
        return block_rank_in_cluster() / (kM * kN);
    }

    // The index of this cluster, and the number of clusters, in a one-dimensional grid.
    __device__ __forceinline__ static int index() { return blockIdx.x / kCtas; }
    __device__ __forceinline__ static int count() { return gridDim.x / kCtas; }
};

}  // namespace tmaasync
