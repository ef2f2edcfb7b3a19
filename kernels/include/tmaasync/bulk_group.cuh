#pragma once

#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/ptx/cp_async_bulk.cuh>

// Bulk groups: the end of a thread's stores and reductions.
namespace tmaasync {

// Close the group of the stores and reductions this thread issued since the last one.
__device__ __forceinline__ void commit_group() {
    ptx::cp_async_bulk_commit_group();
    instrument::trace_store_commit();
}

// Wait until at most kPending of this thread's groups are not yet written to global memory.
template <int kPending = 0>
__device__ __forceinline__ void wait_group() {
    const instrument::TracedWait traced(instrument::TraceKind::kStoreWait, 0, kPending);
    ptx::cp_async_bulk_wait_group<kPending>();
}

// Wait until at most kPending of this thread's groups still read their shared memory, which may be
// written again then. Guarantees nothing about global memory.
template <int kPending = 0>
__device__ __forceinline__ void wait_group_read() {
    const instrument::TracedWait traced(instrument::TraceKind::kStoreWaitRead, 0, kPending);
    ptx::cp_async_bulk_wait_group_read<kPending>();
}

}  // namespace tmaasync
