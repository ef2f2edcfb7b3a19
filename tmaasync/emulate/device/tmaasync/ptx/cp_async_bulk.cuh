#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

__device__ __forceinline__ void cp_async_bulk_load(
    u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy
) {
    (void)policy;
    tmaasync_emulate::bulk_load(shared, global, bytes, barrier);
}

__device__ __forceinline__ void cp_async_bulk_load_multicast(
    u32 shared, const void* global, u32 bytes, u32 barrier, u16 cta_mask, u64 policy
) {
    (void)policy;
    tmaasync_emulate::bulk_load_multicast(shared, global, bytes, barrier, cta_mask);
}

__device__ __forceinline__ void cp_async_bulk_prefetch(const void* global, u32 bytes, u64 policy) {
    (void)policy;
    tmaasync_emulate::bulk_prefetch(global, bytes);
}

__device__ __forceinline__ void cp_async_bulk_push(
    u32 remote_shared, u32 shared, u32 bytes, u32 remote_barrier
) {
    tmaasync_emulate::bulk_push(remote_shared, shared, bytes, remote_barrier, nullptr);
}

__device__ __forceinline__ void cp_async_bulk_store(
    void* global, u32 shared, u32 bytes, u64 policy
) {
    (void)policy;
    tmaasync_emulate::bulk_store(global, shared, bytes);
}

__device__ __forceinline__ void cp_async_bulk_store_masked(
    void* global, u32 shared, u32 bytes, u16 byte_mask, u64 policy
) {
    (void)policy;
    tmaasync_emulate::check_byte_mask();
    tmaasync_emulate::bulk_store(global, shared, bytes, byte_mask);
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
    tmaasync_emulate::bulk_commit();
}

template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
    static_assert(kPending >= 0, "0 or more groups");
    tmaasync_emulate::bulk_wait(kPending);
}

template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    static_assert(kPending >= 0, "0 or more groups");
    tmaasync_emulate::bulk_wait_read(kPending);
}

}  // namespace tmaasync::ptx
