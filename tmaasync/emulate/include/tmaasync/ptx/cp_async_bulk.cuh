#pragma once

#include <tmaasync/ptx/integers.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ void cp_async_bulk_load(
    u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy
) {
    using namespace tmaasync_emulate;
    (void)policy;
    Fiber& fiber = current_fiber();
    Flight flight{.kind = Flight::Kind::kBulk};
    flight.global = global;
    flight.bytes = bytes;
    issue_load(fiber, flight, shared, barrier);
}

__device__ __forceinline__ void cp_async_bulk_store(
    void* global, u32 shared, u32 bytes, u64 policy
) {
    using namespace tmaasync_emulate;
    (void)policy;
    Fiber& fiber = current_fiber();
    Store store{.kind = Store::Kind::kBulk};
    store.global = global;
    store.bytes = bytes;
    issue_store(fiber, store, shared);
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
    tmaasync_emulate::commit_stores(tmaasync_emulate::current_fiber());
}

template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
    tmaasync_emulate::wait_for_writes(tmaasync_emulate::current_fiber(), kPending);
}

template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    tmaasync_emulate::wait_for_reads(tmaasync_emulate::current_fiber(), kPending);
}

}  // namespace tmaasync::ptx
