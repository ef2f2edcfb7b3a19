#pragma once

#include <tmaasync/ptx/integers.cuh>
#include <tmaasync/ptx/trace.cuh>

// PTX ISA: "barrier.cluster" and the cluster special registers.
namespace tmaasync::ptx {

__device__ __forceinline__ u32 cluster_ctarank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ u32 cluster_nctarank() {
    u32 ranks;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    return ranks;
}

__device__ __forceinline__ void barrier_cluster_arrive() {
    trace_warp(TraceKind::kClusterArrive);
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    trace_warp(TraceKind::kClusterArrive);
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait() {
    const u32 began = trace_clock();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    trace_wait(TraceKind::kClusterWait, began, 0, 0);
}

}  // namespace tmaasync::ptx
