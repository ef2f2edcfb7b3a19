#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/operands/names.cuh>
#include <tmaasync/ptx/tensormap.cuh>

// PTX ISA: "cp.async.bulk.tensor" with .tile::gather4 and .tile::scatter4, of sm_100a and sm_103a.
// They move four rows of a matrix, whose map has boxes of one row. The rows lie in shared memory
// one after the other, swizzled like a box of four. Coordinates are a column and the four rows.
namespace tmaasync::ptx {

// Global to shared. A row outside the matrix is filled. The barrier counts four boxes; with a
// kCtaGroup of 2 it may lie in either CTA of the pair.
template <int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_gather4(
    u32 shared, const TensorMap* map, Coordinates<5> at, u32 barrier, u64 policy
) {
    const i32* c = at.values;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes%"
        "9.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
        "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier), "l"(policy),
        "C"(name_of_group<kCtaGroup>())
        : "memory"
    );
}

// Global to the same shared offset of every CTA in the mask.
template <int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_gather4_multicast(
    u32 shared, const TensorMap* map, Coordinates<5> at, u32 barrier, u16 cta_mask, u64 policy
) {
    const i32* c = at.values;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes."
        "multicast::cluster%10.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::
            "r"(shared),
        "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
        "h"(cta_mask), "l"(policy), "C"(name_of_group<kCtaGroup>())
        : "memory"
    );
}

// Shared to global, as part of this thread's current bulk group. Rows outside the matrix are
// dropped.
__device__ __forceinline__ void cp_async_bulk_tensor_scatter4(
    const TensorMap* map, Coordinates<5> at, u32 shared, u64 policy
) {
    const i32* c = at.values;
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group.L2::cache_hint [%0, "
        "{%1, %2, %3, %4, %5}], [%6], %7;" ::"l"(map),
        "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(shared), "l"(policy)
        : "memory"
    );
}

// Global to L2. Nothing waits for it.
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_gather4(
    const TensorMap* map, Coordinates<5> at, u64 policy
) {
    const i32* c = at.values;
    asm volatile(
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4.L2::cache_hint [%0, {%1, %2, %3, "
        "%4, %5}], %6;" ::"l"(map),
        "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "l"(policy)
        : "memory"
    );
}

}  // namespace tmaasync::ptx
