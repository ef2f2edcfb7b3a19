#pragma once

#include <tmaasync/operands/integers.cuh>

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

// Without .aligned, so that threads of a warp may come one after the other. ptxas 13.0 makes the
// same instructions of both where they come together.
__device__ __forceinline__ void barrier_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

}  // namespace tmaasync::ptx
