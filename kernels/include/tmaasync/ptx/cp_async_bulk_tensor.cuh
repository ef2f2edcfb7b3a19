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
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %2;\n\tmov.b32 x1, %3;\n\tmov.b32 x2, %4;\n\t"
        "mov.b32 x3, %5;\n\tmov.b32 x4, %6;\n\t"
        "cp.async.bulk.tensor.%11d.shared::%10.global.tile.mbarrier::complete_tx::bytes%9.L2::"
        "cache_hint [%0], [%1, {%12}], [%7], %8;\n\t}" ::"r"(shared),
        "l"(map), "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "r"(barrier), "l"(policy), "C"(name_of_group<kCtaGroup>()),
        "C"(name_of_destination()), "n"(kRank), "C"(name_of_coordinates<kRank>())
        : "memory"
    );
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
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %2;\n\tmov.b32 x1, %3;\n\tmov.b32 x2, %4;\n\t"
        "mov.b32 x3, %5;\n\tmov.b32 x4, %6;\n\t.reg .b16 y<3>;\n\t"
        "mov.b16 y0, %8;\n\tmov.b16 y1, %9;\n\tmov.b16 y2, %10;\n\t"
        "cp.async.bulk.tensor.%14d.shared::%13.global.im2col.mbarrier::complete_tx::bytes%12."
        "L2::cache_hint [%0], [%1, {%15}], [%7], {%16}, %11;\n\t}" ::"r"(shared),
        "l"(map), "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "r"(barrier), "h"(offsets[0]), "h"(offsets[kRank > 3 ? 1 : 0]),
        "h"(offsets[kRank > 4 ? 2 : 0]), "l"(policy), "C"(name_of_group<kCtaGroup>()),
        "C"(name_of_destination()), "n"(kRank), "C"(name_of_coordinates<kRank>()),
        "C"(name_of_offsets<kRank - 2>())
        : "memory"
    );
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
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %2;\n\tmov.b32 x1, %3;\n\tmov.b32 x2, %4;\n\t"
        "mov.b32 x3, %5;\n\tmov.b32 x4, %6;\n\t"
        "cp.async.bulk.tensor.%11d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
        "multicast::cluster%10.L2::cache_hint [%0], [%1, {%12}], [%7], %8, %9;\n\t}" ::"r"(shared),
        "l"(map), "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "r"(barrier), "h"(cta_mask), "l"(policy),
        "C"(name_of_group<kCtaGroup>()), "n"(kRank), "C"(name_of_coordinates<kRank>())
        : "memory"
    );
}

// Shared to global, as part of this thread's current bulk group. Out-of-bounds elements are
// dropped; a negative coordinate is an illegal instruction (measured on an H200).
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_store(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %1;\n\tmov.b32 x1, %2;\n\tmov.b32 x2, %3;\n\t"
        "mov.b32 x3, %4;\n\tmov.b32 x4, %5;\n\t"
        "cp.async.bulk.tensor.%8d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, "
        "{%9}], [%6], %7;\n\t}" ::"l"(map),
        "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "r"(shared), "l"(policy), "n"(kRank), "C"(name_of_coordinates<kRank>())
        : "memory"
    );
}

// Global to L2. Nothing waits for it.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor(
    const TensorMap* map, Coordinates<kRank> at, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %1;\n\tmov.b32 x1, %2;\n\tmov.b32 x2, %3;\n\t"
        "mov.b32 x3, %4;\n\tmov.b32 x4, %5;\n\t"
        "cp.async.bulk.prefetch.tensor.%7d.L2.global.tile.L2::cache_hint [%0, {%8}], %6;\n\t}" ::
            "l"(map),
        "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "l"(policy), "n"(kRank), "C"(name_of_coordinates<kRank>())
        : "memory"
    );
}

// Shared into global by an operation, as part of this thread's current bulk group.
template <ReduceOp kOp, int kRank>
__device__ __forceinline__ void cp_reduce_async_bulk_tensor(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %1;\n\tmov.b32 x1, %2;\n\tmov.b32 x2, %3;\n\t"
        "mov.b32 x3, %4;\n\tmov.b32 x4, %5;\n\t"
        "cp.reduce.async.bulk.tensor.%9d.global.shared::cta.%8.tile.bulk_group.L2::cache_hint "
        "[%0, {%10}], [%6], %7;\n\t}" ::"l"(map),
        "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "r"(shared), "l"(policy), "C"(name_of(kOp)), "n"(kRank),
        "C"(name_of_coordinates<kRank>())
        : "memory"
    );
}

}  // namespace tmaasync::ptx
