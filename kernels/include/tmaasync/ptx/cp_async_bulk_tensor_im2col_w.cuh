#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/operands/names.cuh>
#include <tmaasync/ptx/tensormap.cuh>

// PTX ISA: "cp.async.bulk.tensor" with .im2col::w and .im2col::w::128, of sm_100a and sm_103a:
// pixels along the width alone, of a map that cuTensorMapEncodeIm2colWide() makes. The offsets are
// wHalo and wOffset: pixels that follow the column, or in im2col::w::128 every 32nd pixel, and
// pixels by which the box and the start are moved. wHalo is at most 511 (31), wOffset at most 31.
namespace tmaasync::ptx {

// Global to shared.
template <int kRank, bool kIs128>
__device__ __forceinline__ void cp_async_bulk_tensor_load_im2col_w(
    u32 shared,
    const TensorMap* map,
    Coordinates<kRank> at,
    const u16 (&offsets)[2],
    u32 barrier,
    u64 policy
) {
    static_assert(kRank >= 3 && kRank <= 5, "an im2col map has 3 to 5 dimensions");
    const i32* c = at.values;
    if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w%9.mbarrier::complete_tx::"
            "bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], {%6, %7}, %8;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(barrier), "h"(offsets[0]),
            "h"(offsets[1]), "l"(policy), "C"(kIs128 ? Names::kW128 : Names::kNone)
            : "memory"
        );
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col::w%10.mbarrier::complete_tx::"
            "bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;" ::"r"(shared),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(barrier), "h"(offsets[0]),
            "h"(offsets[1]), "l"(policy), "C"(kIs128 ? Names::kW128 : Names::kNone)
            : "memory"
        );
    } else if constexpr (kRank == 5) {
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.im2col::w%11.mbarrier::complete_tx::"
            "bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9}, %10;" ::"r"(
                shared
            ),
            "l"(map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "r"(barrier),
            "h"(offsets[0]), "h"(offsets[1]), "l"(policy), "C"(kIs128 ? Names::kW128 : Names::kNone)
            : "memory"
        );
    }
}

}  // namespace tmaasync::ptx
