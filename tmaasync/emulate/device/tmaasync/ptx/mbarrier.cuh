#pragma once

#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 count) {
    tmaasync_emulate::mbarrier_init(barrier, count);
}

__device__ __forceinline__ void mbarrier_inval(u32 barrier) {
    tmaasync_emulate::mbarrier_inval(barrier);
}

__device__ __forceinline__ u64 mbarrier_arrive(u32 barrier) {
    return tmaasync_emulate::mbarrier_arrive(barrier, 1, 0, tmaasync_emulate::Order::kOrdered);
}

__device__ __forceinline__ u64 mbarrier_arrive(u32 barrier, u32 count) {
    return tmaasync_emulate::mbarrier_arrive(barrier, count, 0, tmaasync_emulate::Order::kOrdered);
}

__device__ __forceinline__ void mbarrier_arrive_cluster(u32 remote_barrier, u32 count) {
    tmaasync_emulate::mbarrier_arrive(remote_barrier, count, 0, tmaasync_emulate::Order::kOrdered);
}

__device__ __forceinline__ void mbarrier_arrive_cluster_relaxed(u32 remote_barrier, u32 count) {
    tmaasync_emulate::mbarrier_arrive(remote_barrier, count, 0, tmaasync_emulate::Order::kRelaxed);
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
    tmaasync_emulate::mbarrier_arrive(barrier, 1, bytes, tmaasync_emulate::Order::kOrdered);
}

__device__ __forceinline__ u64 mbarrier_arrive_expect_tx_relaxed(u32 barrier, u32 bytes) {
    return tmaasync_emulate::mbarrier_arrive(barrier, 1, bytes, tmaasync_emulate::Order::kRelaxed);
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx_cluster(u32 remote_barrier, u32 bytes) {
    mbarrier_arrive_expect_tx(remote_barrier, bytes);
}

__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, u32 bytes) {
    tmaasync_emulate::mbarrier_expect_tx(barrier, bytes);
}

__device__ __forceinline__ void mbarrier_complete_tx_cluster(u32 remote_barrier, u32 bytes) {
    tmaasync_emulate::mbarrier_complete_tx(remote_barrier, bytes);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity(u32 barrier, u32 parity) {
    return tmaasync_emulate::mbarrier_try_wait(barrier, parity, tmaasync_emulate::Order::kOrdered);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_hint(
    u32 barrier, u32 parity, u32 suspend_ns
) {
    (void)suspend_ns;
    return mbarrier_try_wait_parity(barrier, parity);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_cluster(u32 barrier, u32 parity) {
    return mbarrier_try_wait_parity(barrier, parity);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_relaxed(u32 barrier, u32 parity) {
    return tmaasync_emulate::mbarrier_try_wait(barrier, parity, tmaasync_emulate::Order::kRelaxed);
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_relaxed_cluster(u32 barrier, u32 parity) {
    return mbarrier_try_wait_parity_relaxed(barrier, parity);
}

__device__ __forceinline__ bool mbarrier_test_wait_parity(u32 barrier, u32 parity) {
    return tmaasync_emulate::mbarrier_test_wait(barrier, parity, tmaasync_emulate::Order::kOrdered);
}

__device__ __forceinline__ bool mbarrier_test_wait(u32 barrier, u64 state) {
    return tmaasync_emulate::mbarrier_test_state(barrier, state);
}

}  // namespace tmaasync::ptx
