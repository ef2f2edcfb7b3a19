#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/cp_async.cuh>

// Copies of 4, 8 or 16 bytes from global to shared memory, by every thread for itself: for arrays
// that TMA cannot move, such as rows that do not start at a multiple of 16 bytes, or scattered
// elements.
//
// Both addresses are multiples of the size. Nothing of a copy may be touched before it was waited
// for: by cp_async_wait, after which its own thread sees it and, after __syncthreads(), the other
// threads; or by a wait on an mbarrier on which every copying thread arrives with
// mbarrier_cp_async_arrive. Before TMA or wgmma read the copied bytes, fence_async_view_proxy(),
// after the wait.
namespace tmaasync {

using ptx::CacheLevels;
using ptx::L2Prefetch;

// 16 bytes bypass L1, as data that is read once should; fewer bytes must go through it.
template <int kBytes>
inline constexpr CacheLevels kUsualLevels = kBytes == 16 ? CacheLevels::kL2 : CacheLevels::kAll;

// Copy `source_bytes` bytes and fill the rest of the kBytes with zeros.
template <
    int kBytes,
    CacheLevels kLevels = kUsualLevels<kBytes>,
    L2Prefetch kPrefetch = L2Prefetch::kNone>
__device__ __forceinline__ void cp_async_gs_partial(
    void* shared, const void* global, u32 source_bytes
) {
    ptx::cp_async<kBytes, kLevels, kPrefetch>(ptx::shared_address(shared), global, source_bytes);
}

template <
    int kBytes,
    CacheLevels kLevels = kUsualLevels<kBytes>,
    L2Prefetch kPrefetch = L2Prefetch::kNone>
__device__ __forceinline__ void cp_async_gs(void* shared, const void* global) {
    cp_async_gs_partial<kBytes, kLevels, kPrefetch>(shared, global, kBytes);
}

// Copy if the condition holds, otherwise write zeros and read nothing: for elements beyond an edge.
// The address must be valid to form, not to read.
template <
    int kBytes,
    CacheLevels kLevels = kUsualLevels<kBytes>,
    L2Prefetch kPrefetch = L2Prefetch::kNone>
__device__ __forceinline__ void cp_async_gs_zero_fill(
    void* shared, const void* global, bool condition
) {
    const u32 source_bytes = condition ? kBytes : 0;
    cp_async_gs_partial<kBytes, kLevels, kPrefetch>(shared, global, source_bytes);
}

// Copy if the condition holds, otherwise leave shared memory as it is.
template <
    int kBytes,
    CacheLevels kLevels = kUsualLevels<kBytes>,
    L2Prefetch kPrefetch = L2Prefetch::kNone>
__device__ __forceinline__ void cp_async_gs_if(void* shared, const void* global, bool condition) {
    if (condition) cp_async_gs<kBytes, kLevels, kPrefetch>(shared, global);
}

// Close the group of the copies this thread issued since the last one; empty groups count too.
__device__ __forceinline__ void cp_async_commit() {
    ptx::cp_async_commit_group();
}

// Wait until at most kPending of this thread's groups have not landed.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    ptx::cp_async_wait_group<kPending>();
}

// Wait for all of this thread's copies, committed or not.
__device__ __forceinline__ void cp_async_wait_all() {
    ptx::cp_async_wait_all();
}

// Arrive once all copies that this thread issued before have landed, and publish them, but no other
// writes. The pending count is raised for it, so that init() does not count this arrival, and
// another arrival must keep the phase open until the last thread has got here.
__device__ __forceinline__ void mbarrier_cp_async_arrive(SharedMemBarrier& barrier) {
    if (instrument::is_draining()) return;
    ptx::cp_async_mbarrier_arrive(barrier.address());
}

// Arrive once the copies have landed, where init() counts the arrival: one per copying thread.
__device__ __forceinline__ void mbarrier_cp_async_arrive_noinc(SharedMemBarrier& barrier) {
    if (instrument::is_draining()) return;
    instrument::trace_arrive(barrier.address());
    ptx::cp_async_mbarrier_arrive_noinc(barrier.address());
}

}  // namespace tmaasync
