#pragma once

#include <tmaasync/ptx/cluster.cuh>

namespace tmaasync {

// Rank of this CTA in its cluster; 0 in a launch without clusters.
__device__ __forceinline__ u32 block_rank_in_cluster() {
    return ptx::cluster_ctarank();
}

// Number of CTAs in this cluster; 1 in a launch without clusters.
__device__ __forceinline__ u32 blocks_in_cluster() {
    return ptx::cluster_nctarank();
}

// All threads of all CTAs of the cluster meet; what they wrote before is visible after.
__device__ __forceinline__ void cluster_sync() {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
}

}  // namespace tmaasync
