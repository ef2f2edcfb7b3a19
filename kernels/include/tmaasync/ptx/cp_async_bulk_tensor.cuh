#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/operands/names.cuh>
#include <tmaasync/ptx/tensormap.cuh>

// PTX ISA: "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", "cp.async.bulk.prefetch.tensor".
// One thread issues. Shared addresses are multiples of 128 bytes; coordinates run innermost first,
// are signed, and coordinate 0 times the element size is a multiple of 16 bytes (measured on an
// H200: an illegal instruction otherwise).
namespace tmaasync::ptx {

// Global to shared. The whole box is credited to the barrier, out-of-bounds elements included. With
// a kCtaGroup of 2 (sm_100a, sm_103a) the bytes land in this CTA or in the other one of its pair,
// and the barrier may lie in either.
template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_load(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    static_assert(kCtaGroup == 1 || kRank >= 2, "a copy of a CTA pair has 2 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 1) {
        asm volatile(
            "cp.async.bulk.tensor.1d.shared::%6.global.tile.mbarrier::complete_tx::bytes%5.L2:"
            ":cache_hint [%0], [%1, {%2}], [%3], %4;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(barrier), "l"(policy), "C"(name_of_group<kCtaGroup>()),
            "C"(name_of_destination())
            : "memory"
        );
    } else if constexpr (kRank == 2) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::%7.global.tile.mbarrier::complete_tx::bytes%6.L2:"
            ":cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(barrier), "l"(policy),
            "C"(name_of_group<kCtaGroup>()), "C"(name_of_destination())
            : "memory"
        );
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::%8.global.tile.mbarrier::complete_tx::bytes%7.L2:"
            ":cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(barrier), "l"(policy),
            "C"(name_of_group<kCtaGroup>()), "C"(name_of_destination())
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::%9.global.tile.mbarrier::complete_tx::bytes%8.L2:"
            ":cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(barrier), "l"(policy),
            "C"(name_of_group<kCtaGroup>()), "C"(name_of_destination())
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::%10.global.tile.mbarrier::complete_tx::bytes%9.L2:"
            ":cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
            "l"(policy), "C"(name_of_group<kCtaGroup>()), "C"(name_of_destination())
            : "memory"
        );
    }
}

// Global to shared through an im2col map of rank 3 to 5: from the pixel at these coordinates on,
// moved by `offsets` (one per spatial dimension, innermost first), `channels_per_pixel` by
// `pixels_per_column` elements. All of them are credited to the barrier; kCtaGroup as above.
template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_load_im2col(
    u32 shared,
    const TensorMap* map,
    Coordinates<kRank> at,
    const u16 (&offsets)[kRank - 2],
    u32 barrier,
    u64 policy
) {
    static_assert(kRank >= 3 && kRank <= 5, "an im2col map has 3 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::%9.global.im2col.mbarrier::complete_tx::bytes%8."
            "L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], {%6}, %7;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(barrier), "h"(offsets[0]), "l"(policy),
            "C"(name_of_group<kCtaGroup>()), "C"(name_of_destination())
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::%11.global.im2col.mbarrier::complete_tx::bytes%10."
            "L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(barrier), "h"(offsets[0]),
            "h"(offsets[1]), "l"(policy), "C"(name_of_group<kCtaGroup>()),
            "C"(name_of_destination())
            : "memory"
        );
    } else {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::%13.global.im2col.mbarrier::complete_tx::bytes%12."
            "L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10}, %11;" ::"r"(
                shared
            ),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
            "h"(offsets[0]), "h"(offsets[1]), "h"(offsets[2]), "l"(policy),
            "C"(name_of_group<kCtaGroup>()), "C"(name_of_destination())
            : "memory"
        );
    }
}

// Global to the same shared offset of every CTA in the mask; each one's own barrier at the same
// offset is credited, so each CTA must expect the bytes. With a kCtaGroup of 2 one CTA of each pair
// counts them: all even ones if the barrier's CTA is even, else all odd ones.
template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u16 cta_mask, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    static_assert(kCtaGroup == 1 || kRank >= 2, "a copy of a CTA pair has 2 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 1) {
        asm volatile(
            "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster%6.L2::cache_hint [%0], [%1, {%2}], [%3], %4, %5;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(barrier), "h"(cta_mask), "l"(policy),
            "C"(name_of_group<kCtaGroup>())
            : "memory"
        );
    } else if constexpr (kRank == 2) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster%7.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(barrier), "h"(cta_mask), "l"(policy),
            "C"(name_of_group<kCtaGroup>())
            : "memory"
        );
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster%8.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(
                shared
            ),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(barrier), "h"(cta_mask), "l"(policy),
            "C"(name_of_group<kCtaGroup>())
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster%9.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7, %8;" ::"r"(
                shared
            ),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(barrier), "h"(cta_mask),
            "l"(policy), "C"(name_of_group<kCtaGroup>())
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
            "multicast::cluster%10.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, "
            "%9;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
            "h"(cta_mask), "l"(policy), "C"(name_of_group<kCtaGroup>())
            : "memory"
        );
    }
}

// Shared to global, as part of this thread's current bulk group. Out-of-bounds elements are
// dropped; a negative coordinate is an illegal instruction (measured on an H200).
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_store(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 1) {
        asm volatile(
            "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1}], "
            "[%2], %3;" ::"l"(map),
            "r"(c[0]), "r"(shared), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 2) {
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, "
            "%2}], [%3], %4;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(shared), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, "
            "%2, %3}], [%4], %5;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(shared), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, "
            "%2, %3, %4}], [%5], %6;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(shared), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%1, "
            "%2, %3, %4, %5}], [%6], %7;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(shared), "l"(policy)
            : "memory"
        );
    }
}

// Global to L2. Nothing waits for it.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor(
    const TensorMap* map, Coordinates<kRank> at, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 1) {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.1d.L2.global.tile.L2::cache_hint [%0, {%1}], %2;" ::"l"(
                map
            ),
            "r"(c[0]), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 2) {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [%0, {%1, %2}], %3;" ::
                "l"(map),
            "r"(c[0]), "r"(c[1]), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.3d.L2.global.tile.L2::cache_hint [%0, {%1, %2, %3}], "
            "%4;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.4d.L2.global.tile.L2::cache_hint [%0, {%1, %2, %3, "
            "%4}], %5;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "l"(policy)
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.async.bulk.prefetch.tensor.5d.L2.global.tile.L2::cache_hint [%0, {%1, %2, %3, %4, "
            "%5}], %6;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "l"(policy)
            : "memory"
        );
    }
}

// Shared into global by an operation, as part of this thread's current bulk group.
template <ReduceOp kOp, int kRank>
__device__ __forceinline__ void cp_reduce_async_bulk_tensor(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 1) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.1d.global.shared::cta.%4.tile.bulk_group.L2::cache_hint "
            "[%0, {%1}], [%2], %3;" ::"l"(map),
            "r"(c[0]), "r"(shared), "l"(policy), "C"(name_of(kOp))
            : "memory"
        );
    } else if constexpr (kRank == 2) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.%5.tile.bulk_group.L2::cache_hint "
            "[%0, {%1, %2}], [%3], %4;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(shared), "l"(policy), "C"(name_of(kOp))
            : "memory"
        );
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.3d.global.shared::cta.%6.tile.bulk_group.L2::cache_hint "
            "[%0, {%1, %2, %3}], [%4], %5;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(shared), "l"(policy), "C"(name_of(kOp))
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.4d.global.shared::cta.%7.tile.bulk_group.L2::cache_hint "
            "[%0, {%1, %2, %3, %4}], [%5], %6;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(shared), "l"(policy), "C"(name_of(kOp))
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.reduce.async.bulk.tensor.5d.global.shared::cta.%8.tile.bulk_group.L2::cache_hint "
            "[%0, {%1, %2, %3, %4, %5}], [%6], %7;" ::"l"(map),
            "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(shared), "l"(policy),
            "C"(name_of(kOp))
            : "memory"
        );
    }
}

}  // namespace tmaasync::ptx
