#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

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
    (void)policy;
    tmaasync_emulate::check_tensor_copies();
    using tmaasync_emulate::BoxMode;
    constexpr BoxMode kMode = kIs128 ? BoxMode::kIm2colW128 : BoxMode::kIm2colW;
    tmaasync_emulate::tensor_load(shared, {map, kRank, at.values, offsets, kMode}, barrier);
}

}  // namespace tmaasync::ptx
