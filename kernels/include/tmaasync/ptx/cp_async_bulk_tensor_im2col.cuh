#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>

// PTX ISA: "cp.async.bulk.tensor" with multicast and "cp.async.bulk.prefetch.tensor" in im2col
// mode. Offsets move the column, one per spatial dimension, innermost first.
namespace tmaasync::ptx {

// Global to the same shared offset of every CTA in the mask; each one's own barrier at the same
// offset is credited.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_im2col_multicast(
    u32 shared,
    const TensorMap* map,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    u32 barrier,
    u16 cta_mask,
    u64 policy
) {
    static_assert(kRank >= 3 && kRank <= 5, "an im2col map has 3 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes."
            "multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], {%6}, %7, %8;" ::"r"(
                shared
            ),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(barrier), "h"(offsets[0]), "h"(cta_mask),
            "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes."
            "multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9, "
            "%10;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(barrier), "h"(offsets[0]),
            "h"(offsets[1]), "h"(cta_mask), "l"(policy)
            : "memory"
        );
    } else {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes."
            "multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, "
            "%10}, %11, %12;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
            "h"(offsets[0]), "h"(offsets[1]), "h"(offsets[2]), "h"(cta_mask), "l"(policy)
            : "memory"
        );
    }
}

// Global to L2. Nothing waits for it.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_im2col(
    const TensorMap* map, Coordinates<kRank> at, const u16 (&offsets)[kRank - 2], u64 policy
) {
    static_assert(kRank >= 3 && kRank <= 5, "an im2col map has 3 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col.L2::cache_hint [%0, {%1, %2, %3}], "
            "{%4}, %5;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "h"(offsets[0]), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.4d.L2.global.im2col.L2::cache_hint [%0, {%1, %2, %3, "
            "%4}], "
            "{%5, %6}, %7;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "h"(offsets[0]), "h"(offsets[1]),
            "l"(policy)
            : "memory"
        );
    } else {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.5d.L2.global.im2col.L2::cache_hint [%0, {%1, %2, %3, "
            "%4, %5}], "
            "{%6, %7, %8}, %9;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "h"(offsets[0]), "h"(offsets[1]),
            "h"(offsets[2]), "l"(policy)
            : "memory"
        );
    }
}

}  // namespace tmaasync::ptx
