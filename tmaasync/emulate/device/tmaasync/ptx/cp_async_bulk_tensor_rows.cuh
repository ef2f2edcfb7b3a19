#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

__device__ __forceinline__ tmaasync_emulate::Box box_of_rows(
    const TensorMap* map, const Coordinates<5>& at
) {
    return {map, 2, at.values, nullptr, tmaasync_emulate::BoxMode::kRows};
}

template <int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_gather4(
    u32 shared, const TensorMap* map, Coordinates<5> at, u32 barrier, u64 policy
) {
    static_assert(kCtaGroup == 1 || kCtaGroup == 2, "a CTA group has 1 or 2 CTAs");
    (void)policy;
    tmaasync_emulate::check_tensor_copies();
    tmaasync_emulate::tensor_load(shared, box_of_rows(map, at), barrier, kCtaGroup);
}

template <int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_gather4_multicast(
    u32 shared, const TensorMap* map, Coordinates<5> at, u32 barrier, u16 cta_mask, u64 policy
) {
    static_assert(kCtaGroup == 1 || kCtaGroup == 2, "a CTA group has 1 or 2 CTAs");
    (void)policy;
    tmaasync_emulate::check_tensor_copies();
    tmaasync_emulate::tensor_load_multicast(
        shared, box_of_rows(map, at), barrier, cta_mask, kCtaGroup
    );
}

__device__ __forceinline__ void cp_async_bulk_tensor_scatter4(
    const TensorMap* map, Coordinates<5> at, u32 shared, u64 policy
) {
    (void)policy;
    tmaasync_emulate::check_tensor_copies();
    tmaasync_emulate::tensor_store(box_of_rows(map, at), shared);
}

__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_gather4(
    const TensorMap* map, Coordinates<5> at, u64 policy
) {
    (void)policy;
    tmaasync_emulate::check_tensor_copies();
    tmaasync_emulate::tensor_prefetch(box_of_rows(map, at));
}

}  // namespace tmaasync::ptx
