#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

namespace tmaasync::ptx {

template <int kBytes, CacheLevels kLevels, L2Prefetch kPrefetch>
__device__ __forceinline__ void cp_async(u32 shared, const void* global, u32 source_bytes) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
    static_assert(kLevels == CacheLevels::kAll || kBytes == 16, "past L1 cp.async copies 16 bytes");
    tmaasync_emulate::thread_copy(shared, global, kBytes, source_bytes);
}

__device__ __forceinline__ void cp_async_commit_group() {
    tmaasync_emulate::thread_copies_commit();
}

template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
    static_assert(kPending >= 0, "0 or more groups");
    tmaasync_emulate::thread_copies_wait(kPending);
}

__device__ __forceinline__ void cp_async_wait_all() {
    tmaasync_emulate::thread_copies_commit();
    tmaasync_emulate::thread_copies_wait(0);
}

__device__ __forceinline__ void cp_async_mbarrier_arrive(u32 barrier) {
    tmaasync_emulate::thread_copies_arrive(barrier, true);
}

__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(u32 barrier) {
    tmaasync_emulate::thread_copies_arrive(barrier, false);
}

}  // namespace tmaasync::ptx
