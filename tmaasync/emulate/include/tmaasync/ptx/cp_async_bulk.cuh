#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void cp_async_bulk_load(
    u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy
) {
    (void)policy;
    tmaasync_emulate::bulk_load(shared, global, bytes, barrier);
}

__device__ __forceinline__ void cp_async_bulk_store(
    void* global, u32 shared, u32 bytes, u64 policy
) {
    (void)policy;
    tmaasync_emulate::bulk_store(global, shared, bytes);
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
    tmaasync_emulate::bulk_commit();
}

template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
    tmaasync_emulate::bulk_wait(kPending);
}

template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    tmaasync_emulate::bulk_wait_read(kPending);
}

}  // namespace tmaasync::ptx
