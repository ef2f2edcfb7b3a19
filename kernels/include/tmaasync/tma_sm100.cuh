#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/instrument/draining.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor_rows.cuh>

// TMA without tiles, the instructions of sm_100a and sm_103a. Arguments are as in tma.cuh. Compiled
// and emulated, not run on a chip.
namespace tmaasync {

// Load a box into this CTA. The mbarrier at the same offset in the even CTA of the pair counts it,
// and must expect the bytes of both CTAs.
template <int kRank>
__device__ __forceinline__ void tma_load_2sm(
    const ptx::TensorMap& map,
    SharedMemBarrier& barrier,
    void* shared,
    ptx::Coordinates<kRank> at,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_tensor_load<kRank, 2>(
        ptx::shared_address(shared), &map, at, ptx::even_cta_of_pair(barrier.address()),
        static_cast<u64>(policy)
    );
}

// The same at the same offset in every CTA in the mask.
template <int kRank>
__device__ __forceinline__ void tma_load_2sm_multicast(
    const ptx::TensorMap& map,
    SharedMemBarrier& barrier,
    void* shared,
    ptx::Coordinates<kRank> at,
    u16 cta_mask,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_tensor_load_multicast<kRank, 2>(
        ptx::shared_address(shared), &map, at, ptx::even_cta_of_pair(barrier.address()), cta_mask,
        static_cast<u64>(policy)
    );
}

// Load four rows of a matrix from this column on, by a map whose box is one row. The barrier must
// expect four boxes. They lie in shared memory like a box of four rows.
__device__ __forceinline__ void tma_gather4(
    const ptx::TensorMap& map,
    SharedMemBarrier& barrier,
    void* shared,
    i32 column,
    const i32 (&rows)[4],
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_tensor_gather4(
        ptx::shared_address(shared), &map, {column, rows[0], rows[1], rows[2], rows[3]},
        barrier.address(), static_cast<u64>(policy)
    );
}

// Store four rows. Rows beyond the matrix are dropped. Follow with commit_group().
__device__ __forceinline__ void tma_scatter4(
    const ptx::TensorMap& map,
    const void* shared,
    i32 column,
    const i32 (&rows)[4],
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    if (instrument::is_draining()) return;
    ptx::cp_async_bulk_tensor_scatter4(
        &map, {column, rows[0], rows[1], rows[2], rows[3]}, ptx::shared_address(shared),
        static_cast<u64>(policy)
    );
}

}  // namespace tmaasync
