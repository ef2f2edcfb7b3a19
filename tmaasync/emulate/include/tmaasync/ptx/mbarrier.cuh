#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 count) {
    tmaasync_emulate::init_barrier(tmaasync_emulate::current_fiber(), barrier, count);
}

__device__ __forceinline__ void mbarrier_inval(u32 barrier) {
    tmaasync_emulate::invalidate_barrier(tmaasync_emulate::current_fiber(), barrier);
}

__device__ __forceinline__ u64 mbarrier_arrive(u32 barrier) {
    return tmaasync_emulate::arrive(tmaasync_emulate::current_fiber(), barrier, 1);
}

__device__ __forceinline__ void mbarrier_arrive_cluster(u32 remote_barrier, u32 count) {
    tmaasync_emulate::arrive(tmaasync_emulate::current_fiber(), remote_barrier, count);
}

__device__ __forceinline__ void mbarrier_arrive_cluster_relaxed(u32 remote_barrier, u32 count) {
    mbarrier_arrive_cluster(remote_barrier, count);
}

__device__ __forceinline__ u64 mbarrier_arrive_expect_tx_relaxed(u32 barrier, u32 bytes) {
    return tmaasync_emulate::arrive(tmaasync_emulate::current_fiber(), barrier, 1, bytes);
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
    mbarrier_arrive_expect_tx_relaxed(barrier, bytes);
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx_cluster(u32 remote_barrier, u32 bytes) {
    mbarrier_arrive_expect_tx_relaxed(remote_barrier, bytes);
}

__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, u32 bytes) {
    tmaasync_emulate::expect_bytes(tmaasync_emulate::current_fiber(), barrier, bytes);
}

__device__ __forceinline__ void mbarrier_complete_tx_cluster(u32 remote_barrier, u32 bytes) {
    tmaasync_emulate::deliver_bytes(tmaasync_emulate::current_fiber(), remote_barrier, bytes);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity(u32 barrier, u32 parity) {
    return tmaasync_emulate::wait_for_parity(
        tmaasync_emulate::current_fiber(), barrier, parity, "mbarrier.try_wait.parity"
    );
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_cluster(u32 barrier, u32 parity) {
    return mbarrier_try_wait_parity(barrier, parity);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_relaxed(u32 barrier, u32 parity) {
    return mbarrier_try_wait_parity(barrier, parity);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_relaxed_cluster(u32 barrier, u32 parity) {
    return mbarrier_try_wait_parity(barrier, parity);
}

__device__ __forceinline__ bool mbarrier_test_wait_parity(u32 barrier, u32 parity) {
    return tmaasync_emulate::test_parity(tmaasync_emulate::current_fiber(), barrier, parity);
}

}  // namespace tmaasync::ptx
