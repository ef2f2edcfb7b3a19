#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/tensormap.cuh>

// PTX ISA: "cp.async.bulk.tensor" with .cta_group::2, of sm_100a and sm_103a. A pair is the CTAs of
// ranks 2 n and 2 n + 1. Operands are as in cp_async_bulk_tensor.cuh.
namespace tmaasync::ptx {

// The shared address that the even CTA of the pair has for the same object. A shared address
// carries the rank of its CTA from bit 24 up.
__device__ __forceinline__ u32 even_cta_of_pair(u32 shared) {
    return shared & 0xfeffffff;
}

// Global to shared memory of this CTA, or of the other CTA of its pair. The barrier may lie in
// either CTA of the pair that receives the bytes.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_pair(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u64 policy
) {
    static_assert(kRank >= 2 && kRank <= 5, "a copy of a CTA pair has 2 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 2) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_"
            "group::2.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(barrier), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_"
            "group::2.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(barrier), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_"
            "group::2.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(barrier), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_"
            "group::2.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
            "l"(policy)
            : "memory"
        );
    }
}

// Global to the same shared offset of every CTA in the mask. One CTA of each pair counts the bytes,
// at the barrier's offset: all even ones if the barrier's CTA is even, else all odd ones.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast_pair(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u16 cta_mask, u64 policy
) {
    static_assert(kRank >= 2 && kRank <= 5, "a copy of a CTA pair has 2 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 2) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster.cta_group::2.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::
                "r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(barrier), "h"(cta_mask), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster.cta_group::2.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, "
            "%7;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(barrier), "h"(cta_mask), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster.cta_group::2.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], "
            "%7, %8;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(barrier), "h"(cta_mask),
            "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster.cta_group::2.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], "
            "[%7], %8, %9;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
            "h"(cta_mask), "l"(policy)
            : "memory"
        );
    }
}

}  // namespace tmaasync::ptx
