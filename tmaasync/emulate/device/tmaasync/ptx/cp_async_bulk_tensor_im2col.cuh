#pragma once

#include <tmaasync/ptx/cp_async_bulk_tensor.cuh>

namespace tmaasync::ptx {

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
    (void)policy;
    tmaasync_emulate::tensor_load_multicast(
        shared, {map, kRank, at.values, offsets, tmaasync_emulate::BoxMode::kIm2col}, barrier,
        cta_mask
    );
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_im2col(
    const TensorMap* map, Coordinates<kRank> at, const u16 (&offsets)[kRank - 2], u64 policy
) {
    static_assert(kRank >= 3 && kRank <= 5, "an im2col map has 3 to 5 dimensions");
    (void)policy;
    tmaasync_emulate::tensor_prefetch(
        {map, kRank, at.values, offsets, tmaasync_emulate::BoxMode::kIm2col}
    );
}

}  // namespace tmaasync::ptx
