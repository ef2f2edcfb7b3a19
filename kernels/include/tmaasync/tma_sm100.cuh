#pragma once

#include <tmaasync/barrier.cuh>
#include <tmaasync/cache_policy.cuh>
#include <tmaasync/operands/copies.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync/tma_issue.cuh>

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
    const u32 even = ptx::even_cta_of_pair(barrier.address());
    tma::load<kRank, 2>(ptx::shared_address(shared), map, at, even, policy);
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
    const u32 even = ptx::even_cta_of_pair(barrier.address());
    tma::load_multicast<kRank, 2>(ptx::shared_address(shared), map, at, even, cta_mask, policy);
}

// Load a tile into this CTA, box by box. The barrier of the even CTA must expect two tiles.
template <typename Tile>
__device__ __forceinline__ void tma_load_2sm(
    const Tile& tile,
    SharedMemBarrier& barrier,
    typename Tile::Shared& shared,
    ptx::Coordinates<Tile::kRank> at,
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    const u32 even = ptx::even_cta_of_pair(barrier.address());
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box) {
        tma::load<Tile::kRank, 2>(
            Tile::box_address(shared, box), tile.map, Tile::box_start(at, box), even, policy
        );
    }
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
    tma::load_rows(ptx::shared_address(shared), map, column, rows, barrier.address(), policy);
}

// Store four rows. Rows beyond the matrix are dropped. Follow with commit_group().
__device__ __forceinline__ void tma_scatter4(
    const ptx::TensorMap& map,
    const void* shared,
    i32 column,
    const i32 (&rows)[4],
    CachePolicy policy = CachePolicy::kEvictNormal
) {
    tma::store_rows(map, column, rows, ptx::shared_address(shared), policy);
}

}  // namespace tmaasync
