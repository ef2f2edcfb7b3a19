#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/operands/names.cuh>

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
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %2;\n\tmov.b32 x1, %3;\n\tmov.b32 x2, %4;\n\t"
        "mov.b32 x3, %5;\n\tmov.b32 x4, %6;\n\t.reg .b16 y<3>;\n\t"
        "mov.b16 y0, %8;\n\tmov.b16 y1, %9;\n\tmov.b16 y2, %10;\n\t"
        "cp.async.bulk.tensor.%13d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes."
        "multicast::cluster.L2::cache_hint [%0], [%1, {%14}], [%7], {%15}, %11, %12;\n\t}" ::"r"(
            shared
        ),
        "l"(map), "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "r"(barrier), "h"(offsets[0]), "h"(offsets[kRank > 3 ? 1 : 0]),
        "h"(offsets[kRank > 4 ? 2 : 0]), "h"(cta_mask), "l"(policy), "n"(kRank),
        "C"(name_of_coordinates<kRank>()), "C"(name_of_offsets<kRank - 2>())
        : "memory"
    );
}

// Global to L2. Nothing waits for it.
template <int kRank>
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_im2col(
    const TensorMap* map, Coordinates<kRank> at, const u16 (&offsets)[kRank - 2], u64 policy
) {
    static_assert(kRank >= 3 && kRank <= 5, "an im2col map has 3 to 5 dimensions");
    asm volatile(
        "{\n\t.reg .b32 x<5>;\n\tmov.b32 x0, %1;\n\tmov.b32 x1, %2;\n\tmov.b32 x2, %3;\n\t"
        "mov.b32 x3, %4;\n\tmov.b32 x4, %5;\n\t.reg .b16 y<3>;\n\t"
        "mov.b16 y0, %6;\n\tmov.b16 y1, %7;\n\tmov.b16 y2, %8;\n\t"
        "cp.async.bulk.prefetch.tensor.%10d.L2.global.im2col.L2::cache_hint [%0, {%11}], "
        "{%12}, %9;\n\t}" ::"l"(map),
        "r"(at.or_zero(0)), "r"(at.or_zero(1)), "r"(at.or_zero(2)), "r"(at.or_zero(3)),
        "r"(at.or_zero(4)), "h"(offsets[0]), "h"(offsets[kRank > 3 ? 1 : 0]),
        "h"(offsets[kRank > 4 ? 2 : 0]), "l"(policy), "n"(kRank), "C"(name_of_coordinates<kRank>()),
        "C"(name_of_offsets<kRank - 2>())
        : "memory"
    );
}

}  // namespace tmaasync::ptx
