#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/bulk_group.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync/tma_issue.cuh>

// TMA without tiles: one instruction a call, through a raw tensor map or between plain addresses.
//
// A map is a `const __grid_constant__ TensorMap` parameter, for which the host passes a tile, or
// lies in global memory. Global memory comes first among the arguments, then the barrier, then
// shared memory. Coordinates are elements, innermost first. One thread issues each copy; a barrier
// must expect the bytes of a load, whole boxes at the edges too; ordinary writes to shared memory
// need fence_async_view_proxy() by every writer, and then a barrier, before TMA reads them.
//
// Through a map shared memory is aligned to 128 bytes, and more with a swizzle. Without one all
// addresses and sizes are multiples of 16, and nothing is clipped.
namespace tmaasync {

using ptx::Coordinates;
using ptx::ElementType;
using ptx::ReduceOp;
using ptx::TensorMap;

// --- through a tensor map ------------------------------------------------------------------------

// Prefetch the map itself, so that the first copy does not wait for it. Once, at the start.
__device__ __forceinline__ void prefetch_tma_descriptor(const TensorMap& map) {
    ptx::prefetch_tensormap(&map);
}

template <int kRank>
__device__ __forceinline__ void tma_load(
    const TensorMap& map,
    SharedMemBarrier& barrier,
    void* shared,
    Coordinates<kRank> at,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::load<kRank>(ptx::shared_address(shared), map, at, barrier.address(), policy);
}

// Load at the same offset in every CTA in the mask. Each must expect the bytes.
template <int kRank>
__device__ __forceinline__ void tma_load_multicast(
    const TensorMap& map,
    SharedMemBarrier& barrier,
    void* shared,
    Coordinates<kRank> at,
    u16 cta_mask,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::load_multicast<kRank>(
        ptx::shared_address(shared), map, at, barrier.address(), cta_mask, policy
    );
}

// Load through an im2col map: the pixels from these coordinates on, each moved by the offsets.
template <int kRank>
__device__ __forceinline__ void tma_load_im2col(
    const TensorMap& map,
    SharedMemBarrier& barrier,
    void* shared,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::load_im2col<kRank>(
        ptx::shared_address(shared), map, at, offsets, barrier.address(), policy
    );
}

template <int kRank>
__device__ __forceinline__ void tma_load_im2col_multicast(
    const TensorMap& map,
    SharedMemBarrier& barrier,
    void* shared,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    u16 cta_mask,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::load_im2col_multicast<kRank>(
        ptx::shared_address(shared), map, at, offsets, barrier.address(), cta_mask, policy
    );
}

// Store; elements beyond the array are dropped, and no coordinate may be negative.
template <int kRank>
__device__ __forceinline__ void tma_store(
    const TensorMap& map,
    const void* shared,
    Coordinates<kRank> at,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::store<kRank>(map, at, ptx::shared_address(shared), policy);
}

template <ReduceOp kOp, int kRank>
__device__ __forceinline__ void tma_reduce(
    const TensorMap& map,
    const void* shared,
    Coordinates<kRank> at,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::reduce<kOp, kRank>(map, at, ptx::shared_address(shared), policy);
}

// Bring a box into L2.
template <int kRank>
__device__ __forceinline__ void tma_prefetch(
    const TensorMap& map, Coordinates<kRank> at, CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::prefetch<kRank>(map, at, policy);
}

template <int kRank>
__device__ __forceinline__ void tma_prefetch_im2col(
    const TensorMap& map,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::prefetch_im2col<kRank>(map, at, offsets, policy);
}

// --- between plain addresses ---------------------------------------------------------------------

__device__ __forceinline__ void tma_load_1d(
    const void* global,
    SharedMemBarrier& barrier,
    void* shared,
    u32 bytes,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::load_bulk(ptx::shared_address(shared), global, bytes, barrier.address(), policy);
}

// Load at the same offset in every CTA in the mask. Each must expect the bytes.
__device__ __forceinline__ void tma_load_1d_multicast(
    const void* global,
    SharedMemBarrier& barrier,
    void* shared,
    u32 bytes,
    u16 cta_mask,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::load_bulk_multicast(
        ptx::shared_address(shared), global, bytes, barrier.address(), cta_mask, policy
    );
}

__device__ __forceinline__ void tma_store_1d(
    void* global, const void* shared, u32 bytes, CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::store_bulk(global, ptx::shared_address(shared), bytes, policy);
}

// Reduce into global memory. Without a map the call names the element type; a reduction that sm_90
// lacks does not compile.
template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void tma_reduce_1d(
    void* global, const void* shared, u32 bytes, CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::reduce_bulk<kOp, kType>(global, ptx::shared_address(shared), bytes, policy);
}

// Bring these bytes of global memory into L2.
__device__ __forceinline__ void tma_prefetch_1d(
    const void* global, u32 bytes, CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::prefetch_bulk(global, bytes, policy);
}

// --- from CTA to CTA -----------------------------------------------------------------------------

// Push this CTA's shared memory into the shared memory of the CTA of this rank (distributed shared
// memory), and credit the barrier there. `barrier` and `target` lie at the same offset as here. The
// barrier must expect the bytes: by arrive_and_expect_bytes(bytes, rank) of the pusher, or by the
// receiver itself. Only the receiver can observe that `source` has been read: it reports so before
// `source` is written again or the pusher's CTA leaves.
__device__ __forceinline__ void tma_store_cluster(
    void* target, SharedMemBarrier& barrier, const void* source, u32 bytes, u32 cta_rank
) {
    tma::push(
        ptx::mapa(ptx::shared_address(target), cta_rank), ptx::shared_address(source), bytes,
        ptx::mapa(barrier.address(), cta_rank)
    );
}

// Push and reduce into the shared memory there. A reduction that sm_90 lacks does not compile.
template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void tma_reduce_cluster(
    void* target, SharedMemBarrier& barrier, const void* source, u32 bytes, u32 cta_rank
) {
    tma::reduce_push<kOp, kType>(
        ptx::mapa(ptx::shared_address(target), cta_rank), ptx::shared_address(source), bytes,
        ptx::mapa(barrier.address(), cta_rank)
    );
}

// --- the end of stores and reductions ------------------------------------------------------------

// Close the group of this thread's stores and reductions into global memory.
__device__ __forceinline__ void tma_store_arrive() {
    commit_group();
}

// Wait until at most kPending of this thread's groups still read shared memory, which may be
// written again then; without kRead, until they are written to global memory.
template <int kPending = 0, bool kRead = true>
__device__ __forceinline__ void tma_store_wait() {
    if constexpr (kRead) {
        wait_group_read<kPending>();
    } else {
        wait_group<kPending>();
    }
}

}  // namespace tmaasync
