#pragma once

#include <tmaasync/ptx/cp_async_bulk_tensor.cuh>

namespace tmaasync::ptx {

__device__ __forceinline__ u32 even_cta_of_pair(u32 shared) {
    return shared & 0xfeffffff;
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_pair(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u64 policy
) {
    static_assert(kRank >= 2 && kRank <= 5, "a copy of a CTA pair has 2 to 5 dimensions");
    (void)policy;
    tmaasync_emulate::need_tensor_copies();
    tmaasync_emulate::tensor_load(shared, box_of(map, at), barrier, 2);
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast_pair(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u16 cta_mask, u64 policy
) {
    static_assert(kRank >= 2 && kRank <= 5, "a copy of a CTA pair has 2 to 5 dimensions");
    (void)policy;
    tmaasync_emulate::need_tensor_copies();
    tmaasync_emulate::tensor_load_multicast(shared, box_of(map, at), barrier, cta_mask, 2);
}

}  // namespace tmaasync::ptx
