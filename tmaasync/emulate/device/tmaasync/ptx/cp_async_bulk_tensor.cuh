#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/tensormap.cuh>
#include <tmaasync_emulate/refused.hpp>

namespace tmaasync::ptx {

template <int kRank>
__device__ __forceinline__ tmaasync_emulate::Box box_of(
    const TensorMap* map, const Coordinates<kRank>& at
) {
    static_assert(kRank >= 1 && kRank <= 5, "a tensor map has 1 to 5 dimensions");
    return {map, kRank, at.values};
}

template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_load(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u64 policy
) {
    static_assert(kCtaGroup == 1 || kRank >= 2, "a copy of a CTA pair has 2 to 5 dimensions");
    if constexpr (kCtaGroup == 2) tmaasync_emulate::check_tensor_copies();
    (void)policy;
    tmaasync_emulate::tensor_load(shared, box_of(map, at), barrier, kCtaGroup);
}

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
    if constexpr (kCtaGroup == 2) tmaasync_emulate::check_tensor_copies();
    (void)policy;
    tmaasync_emulate::tensor_load(
        shared, {map, kRank, at.values, offsets, tmaasync_emulate::BoxMode::kIm2col}, barrier,
        kCtaGroup
    );
}

template <int kRank, int kCtaGroup = 1>
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast(
    u32 shared, const TensorMap* map, Coordinates<kRank> at, u32 barrier, u16 cta_mask, u64 policy
) {
    static_assert(kCtaGroup == 1 || kRank >= 2, "a copy of a CTA pair has 2 to 5 dimensions");
    if constexpr (kCtaGroup == 2) tmaasync_emulate::check_tensor_copies();
    (void)policy;
    tmaasync_emulate::tensor_load_multicast(shared, box_of(map, at), barrier, cta_mask, kCtaGroup);
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_tensor_store(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    (void)policy;
    tmaasync_emulate::tensor_store(box_of(map, at), shared);
}

template <int kRank>
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor(
    const TensorMap* map, Coordinates<kRank> at, u64 policy
) {
    (void)policy;
    tmaasync_emulate::tensor_prefetch(box_of(map, at));
}

template <ReduceOp kOp, int kRank>
__device__ __forceinline__ void cp_reduce_async_bulk_tensor(
    const TensorMap* map, Coordinates<kRank> at, u32 shared, u64 policy
) {
    (void)policy;
    tmaasync_emulate::tensor_reduce(static_cast<int>(kOp), box_of(map, at), shared);
}

}  // namespace tmaasync::ptx
