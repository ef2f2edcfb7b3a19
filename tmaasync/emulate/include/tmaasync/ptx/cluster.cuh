#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 cluster_ctarank() {
    return tmaasync_emulate::current_fiber().cta->rank;
}

__device__ __forceinline__ u32 cluster_nctarank() {
    return tmaasync_emulate::current_fiber().cluster->launch().cluster_ctas();
}

__device__ __forceinline__ void barrier_cluster_arrive() {
    auto& fiber = tmaasync_emulate::current_fiber();
    fiber.cluster->arrive_at_cluster(fiber);
}

__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    barrier_cluster_arrive();
}

__device__ __forceinline__ void barrier_cluster_wait() {
    auto& fiber = tmaasync_emulate::current_fiber();
    fiber.cluster->wait_for_cluster(fiber);
}

}  // namespace tmaasync::ptx
