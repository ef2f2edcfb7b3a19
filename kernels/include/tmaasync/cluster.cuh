#pragma once

#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/ptx/address.cuh>
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

// Synchronise all threads of the cluster, and make their earlier writes visible.
__device__ __forceinline__ void cluster_sync() {
    instrument::trace_warp(instrument::TraceKind::kClusterArrive);
    ptx::barrier_cluster_arrive();
    const instrument::TracedWait traced(instrument::TraceKind::kClusterWait);
    ptx::barrier_cluster_wait();
}

// The address of the same shared object in the CTA of this rank, for ordinary loads and stores.
// Stores are visible there after a cluster_sync(), or after an arrive_cluster() on a barrier there
// and a wait_acquire<Scope::kCluster> on it.
template <typename T>
__device__ __forceinline__ T* map_shared_rank(T* shared, u32 cta_rank) {
    return reinterpret_cast<T*>(ptx::mapa(reinterpret_cast<u64>(shared), cta_rank));
}

}  // namespace tmaasync
