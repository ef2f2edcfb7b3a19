#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cuda/detail/ptx_mbarrier.hpp>
#include <cuda/detail/ptx_tags.hpp>
#include <cuda/detail/shared_memory.hpp>
#include <tmaasync/ptx/cp_async_bulk.cuh>
#include <tmaasync/ptx/cp_async_bulk_tensor.cuh>
#include <tmaasync/ptx/cp_reduce_async_bulk.cuh>
#include <type_traits>

namespace cuda::detail {

TMAASYNC_EMULATE_INLINE const tma::TensorMap* map_at(const void* map) {
    return static_cast<const tma::TensorMap*>(map);
}

template <int kRank>
TMAASYNC_EMULATE_INLINE tma::Coordinates<kRank> coordinates_of(const ::std::int32_t (&at)[kRank]) {
    tma::Coordinates<kRank> coordinates;
    for (int i = 0; i < kRank; ++i) coordinates.values[i] = at[i];
    return coordinates;
}

constexpr tma::ReduceOp reduce_op(ptx::dot_op op) {
    switch (op) {
        case ptx::dot_op::add:
            return tma::ReduceOp::kAdd;
        case ptx::dot_op::min:
            return tma::ReduceOp::kMin;
        case ptx::dot_op::max:
            return tma::ReduceOp::kMax;
        case ptx::dot_op::inc:
            return tma::ReduceOp::kInc;
        case ptx::dot_op::dec:
            return tma::ReduceOp::kDec;
        case ptx::dot_op::and_op:
            return tma::ReduceOp::kAnd;
        case ptx::dot_op::or_op:
            return tma::ReduceOp::kOr;
        default:
            return tma::ReduceOp::kXor;
    }
}

// Sums of signed and unsigned 64-bit integers have the same bits.
template <typename T>
constexpr tma::ElementType element_type(bool is_sum) {
    if constexpr (::std::is_same_v<T, __half>) {
        return tma::ElementType::kF16;
    } else if constexpr (::std::is_same_v<T, __nv_bfloat16>) {
        return tma::ElementType::kBf16;
    } else if constexpr (::std::is_same_v<T, float>) {
        return tma::ElementType::kF32;
    } else if constexpr (::std::is_same_v<T, double>) {
        return tma::ElementType::kF64;
    } else {
        static_assert(::std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
        if (sizeof(T) == 4) {
            return ::std::is_signed_v<T> ? tma::ElementType::kS32 : tma::ElementType::kU32;
        }
        const bool is_signed = ::std::is_signed_v<T> && !is_sum;
        return is_signed ? tma::ElementType::kS64 : tma::ElementType::kU64;
    }
}

}  // namespace cuda::detail

namespace cuda::ptx {

using ::std::int32_t;
using ::std::uint16_t;

// --- bulk copies ---------------------------------------------------------------------------------

template <dot_space kSpace>
TMAASYNC_EMULATE_INLINE void cp_async_bulk(
    space_t<kSpace>,
    space_global_t,
    void* target,
    const void* source,
    uint32_t bytes,
    detail::BarrierWord barrier
) {
    static_assert(kSpace != dot_space::global, "a load writes shared memory");
    detail::tma::cp_async_bulk_load(
        detail::shared_address(target), source, bytes, detail::shared_address(barrier), 0
    );
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk(
    space_cluster_t,
    space_global_t,
    void* target,
    const void* source,
    uint32_t bytes,
    detail::BarrierWord barrier,
    uint16_t ctas
) {
    detail::tma::cp_async_bulk_load_multicast(
        detail::shared_address(target), source, bytes, detail::shared_address(barrier), ctas, 0
    );
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk(
    space_cluster_t,
    space_shared_t,
    void* target,
    const void* source,
    uint32_t bytes,
    detail::BarrierWord remote_barrier
) {
    detail::tma::cp_async_bulk_push(
        detail::shared_address(target), detail::shared_address(source), bytes,
        detail::shared_address(remote_barrier)
    );
}
TMAASYNC_EMULATE_INLINE void cp_async_bulk(
    space_global_t, space_shared_t, void* target, const void* source, uint32_t bytes
) {
    detail::tma::cp_async_bulk_store(target, detail::shared_address(source), bytes, 0);
}

TMAASYNC_EMULATE_INLINE void cp_async_bulk_prefetch(
    const void* source, uint32_t bytes, uint64_t policy = 0
) {
    detail::tma::cp_async_bulk_prefetch(source, bytes, policy);
}

// --- reductions ----------------------------------------------------------------------------------

template <dot_op kOp, typename T>
TMAASYNC_EMULATE_INLINE void cp_reduce_async_bulk(
    space_global_t, space_shared_t, op_t<kOp>, T* target, const T* source, uint32_t bytes
) {
    constexpr auto kType = detail::element_type<T>(kOp == dot_op::add);
    detail::tma::cp_reduce_async_bulk<detail::reduce_op(kOp), kType>(
        target, detail::shared_address(source), bytes, 0
    );
}
template <dot_op kOp, typename T>
TMAASYNC_EMULATE_INLINE void cp_reduce_async_bulk(
    space_cluster_t,
    space_shared_t,
    op_t<kOp>,
    T* target,
    const T* source,
    uint32_t bytes,
    detail::BarrierWord remote_barrier
) {
    constexpr auto kType = detail::element_type<T>(kOp == dot_op::add);
    detail::tma::cp_reduce_async_bulk_push<detail::reduce_op(kOp), kType>(
        detail::shared_address(target), detail::shared_address(source), bytes,
        detail::shared_address(remote_barrier)
    );
}

// --- copies through a tensor map -----------------------------------------------------------------

template <dot_space kSpace, int kRank>
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor(
    space_t<kSpace>,
    space_global_t,
    void* target,
    const void* map,
    const int32_t (&at)[kRank],
    detail::BarrierWord barrier
) {
    static_assert(kSpace != dot_space::global, "a load writes shared memory");
    detail::tma::cp_async_bulk_tensor_load(
        detail::shared_address(target), detail::map_at(map), detail::coordinates_of(at),
        detail::shared_address(barrier), 0
    );
}
template <int kRank>
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor(
    space_cluster_t,
    space_global_t,
    void* target,
    const void* map,
    const int32_t (&at)[kRank],
    detail::BarrierWord barrier,
    uint16_t ctas
) {
    detail::tma::cp_async_bulk_tensor_load_multicast(
        detail::shared_address(target), detail::map_at(map), detail::coordinates_of(at),
        detail::shared_address(barrier), ctas, 0
    );
}
template <int kRank>
TMAASYNC_EMULATE_INLINE void cp_async_bulk_tensor(
    space_global_t, space_shared_t, const void* map, const int32_t (&at)[kRank], const void* source
) {
    detail::tma::cp_async_bulk_tensor_store(
        detail::map_at(map), detail::coordinates_of(at), detail::shared_address(source), 0
    );
}
template <dot_op kOp, int kRank>
TMAASYNC_EMULATE_INLINE void cp_reduce_async_bulk_tensor(
    space_global_t,
    space_shared_t,
    op_t<kOp>,
    const void* map,
    const int32_t (&at)[kRank],
    const void* source
) {
    detail::tma::cp_reduce_async_bulk_tensor<detail::reduce_op(kOp)>(
        detail::map_at(map), detail::coordinates_of(at), detail::shared_address(source), 0
    );
}

// --- groups --------------------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE void cp_async_bulk_commit_group() {
    detail::tma::cp_async_bulk_commit_group();
}
template <int kPending>
TMAASYNC_EMULATE_INLINE void cp_async_bulk_wait_group(n32_t<kPending>) {
    detail::tma::cp_async_bulk_wait_group<kPending>();
}
template <int kPending>
TMAASYNC_EMULATE_INLINE void cp_async_bulk_wait_group_read(n32_t<kPending>) {
    detail::tma::cp_async_bulk_wait_group_read<kPending>();
}

}  // namespace cuda::ptx
