#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/copy/copy_types.cuh>
#include <tmaasync/cp_async.cuh>

// Copies of a tile by a whole block. `Source` and `Target` are types that the host's plan_copy
// chose; one source serves every choice: TMA, cp.async or a loop. Where a tile reaches beyond the
// array, loads leave zeros and stores write nothing. Coordinates are elements, innermost first, and
// among the `starts` of the plan.
namespace tmaasync {

// The barrier of `copy`, which lives for one call.
__device__ __forceinline__ SharedMemBarrier& copy_barrier() {
    __shared__ SharedMemBarrier barrier;
    return barrier;
}

// True in the first of every kScope threads; in the first of the block, if that is 0.
template <int kScope>
__device__ __forceinline__ bool leads() {
    static_assert(kScope % 32 == 0, "whole warps");
    if constexpr (kScope == 0) {
        return thread_index<3>() == 0;
    } else {
        return thread_index<3>() % kScope == 0;
    }
}

// Start a load by TMA and return. The leader arrives once on the barrier and makes it expect the
// tile: init it with 1, and wait for it before touching `shared`. Called by the kScope threads of
// which the first leads, all of the block by default.
//
// Earlier accesses to `shared` are over; after ordinary ones, fence_async_view_proxy(). In a
// multicast that holds for every CTA of the mask: all of them call this, each with a barrier at the
// same offset, initialised before a cluster_sync(); the lowest issues. No CTA leaves before all are
// done: cluster_sync() at the end of the kernel.
template <int kScope = 0, typename Source>
__device__ __forceinline__ void tma_copy(
    typename Source::Shared& shared,
    const Source& source,
    Coordinates<Source::kRank> at,
    SharedMemBarrier& barrier
) {
    static_assert(Source::kIsTma, "the plan did not choose TMA: its explain() says why");
    if (!leads<kScope>()) return;
    barrier.expect_bytes(Source::kBytes);
    source.load(shared, barrier, at);
}

// Start a store by TMA, close its group, and return; the leader may wait_group() for it. Ordinary
// writes to `shared` need fence_async_view_proxy() by every writer, and then a barrier.
template <int kScope = 0, typename Target>
__device__ __forceinline__ void tma_copy(
    const Target& target, const typename Target::Shared& shared, Coordinates<Target::kRank> at
) {
    static_assert(Target::kIsTma, "the plan did not choose TMA: its explain() says why");
    if (!leads<kScope>()) return;
    target.store(shared, at);
    commit_group();
}

// Start a load by cp.async, close each thread's group, and return. cp_async_wait() and
// __syncthreads() make the tile visible to the block, fence_async_view_proxy() between them to TMA
// and wgmma.
template <typename Source>
__device__ __forceinline__ void async_copy(
    typename Source::Shared& shared, const Source& source, Coordinates<Source::kRank> at
) {
    static_assert(
        Source::kIsCpAsync, "the plan did not choose cp.async: its explain() says why, or prefer it"
    );
    source.load(shared, at);
    cp_async_commit();
}

// --- one call does it all ------------------------------------------------------------------------

// Synchronise the threads whose shared memory a load by this type writes: the block, or in a
// multicast the cluster.
template <typename Source>
__device__ __forceinline__ void sync_receivers() {
    if constexpr (Source::kIsMulticast) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

template <typename Source>
__device__ __forceinline__ void copy_by_tma(
    typename Source::Shared& shared,
    const Source& source,
    Coordinates<Source::kRank> at,
    WaitLocation location
) {
    SharedMemBarrier& full = copy_barrier();
    if (leads<0>()) {
        full.init(1);
        fence_barrier_init();
    }
    fence_async_view_proxy();
    sync_receivers<Source>();
    tma_copy(shared, source, at, full);
    full.wait(0, location);
    sync_receivers<Source>();
    if (leads<0>()) full.invalidate();
}

// Load a tile: returns when all threads, TMA and wgmma see it. Waits for threads that still use
// `shared`. All threads of the block call it, with the same coordinates; in a multicast all threads
// of the cluster.
template <typename Source>
__device__ __forceinline__ void copy(
    typename Source::Shared& shared,
    const Source& source,
    Coordinates<Source::kRank> at,
    WaitLocation location = {}
) {
    if constexpr (Source::kIsTma) {
        copy_by_tma(shared, source, at, location);
    } else {
        __syncthreads();
        source.load(shared, at);
        if constexpr (Source::kIsCpAsync) {
            cp_async_commit();
            cp_async_wait<0>();
        }
        fence_async_view_proxy();
        __syncthreads();
    }
}

// Store a tile: returns when all threads of the block see it in global memory, and `shared` may be
// written again. Waits for threads that still write `shared`. All threads of the block call it.
template <typename Target>
__device__ __forceinline__ void copy(
    const Target& target, const typename Target::Shared& shared, Coordinates<Target::kRank> at
) {
    if constexpr (Target::kIsTma) {
        fence_async_view_proxy();
        __syncthreads();
        tma_copy(target, shared, at);
        if (leads<0>()) wait_group<0>();
    } else {
        __syncthreads();
        target.store(shared, at);
    }
    __syncthreads();
}

}  // namespace tmaasync
