#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 cluster_ctarank() {
    return tmaasync_emulate::current_thread().rank;
}

__device__ __forceinline__ u32 cluster_nctarank() {
    return tmaasync_emulate::current_thread().ctas;
}

__device__ __forceinline__ void barrier_cluster_arrive() {
    tmaasync_emulate::cluster_barrier_arrive(true);
}

__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    tmaasync_emulate::cluster_barrier_arrive(false);
}

__device__ __forceinline__ void barrier_cluster_wait() {
    tmaasync_emulate::cluster_barrier_wait();
}

}  // namespace tmaasync::ptx
