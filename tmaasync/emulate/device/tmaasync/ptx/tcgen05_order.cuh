#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/tcgen05_calls.hpp>

namespace tmaasync::ptx {

__device__ __forceinline__ void tcgen05_wait_ld() {
    tmaasync_emulate::tcgen05_wait_load();
}

__device__ __forceinline__ void tcgen05_wait_st() {
    tmaasync_emulate::tcgen05_wait_store();
}

__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
    tmaasync_emulate::tcgen05_fence_before();
}

__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
    tmaasync_emulate::tcgen05_fence_after();
}

template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_commit(u32 barrier) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    tmaasync_emulate::tcgen05_commit(kCtas, barrier, 0);
}

template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_commit_multicast(u32 barrier, u16 cta_mask) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    tmaasync_emulate::tcgen05_commit(kCtas, barrier, cta_mask);
}

}  // namespace tmaasync::ptx
