#pragma once

#include <tmaasync/ptx/draining.cuh>
#include <tmaasync/ptx/integers.cuh>
#include <tmaasync/ptx/operands.cuh>
#include <tmaasync/ptx/trace.cuh>

// PTX ISA: "cp.reduce.async.bulk". Addresses and sizes are multiples of 16 bytes. One thread
// issues.
namespace tmaasync::ptx {

// clang-format off
#define TMAASYNC_REDUCE_TO_GLOBAL(OP)                                                               \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint" OP             \
                 " [%0], [%1], %2, %3;"                                                             \
                 ::"l"(global), "r"(shared), "r"(bytes), "l"(policy) : "memory");
#define TMAASYNC_REDUCE_TO_SHARED(OP)                                                               \
    asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes" OP \
                 " [%0], [%1], %2, [%3];"                                                           \
                 ::"r"(remote_shared), "r"(shared), "r"(bytes), "r"(remote_barrier) : "memory");
#define TMAASYNC_REDUCE_TYPE(REDUCE, OP, TYPE, NAME)                                                \
    if constexpr (kType == ElementType::TYPE) REDUCE(OP NAME)
#define TMAASYNC_REDUCE_NUMBERS(REDUCE, OP, HALF)                                                   \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kU32, ".u32")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kS32, ".s32")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kU64, ".u64")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kS64, ".s64")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kF16, HALF ".f16")                                             \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kBf16, HALF ".bf16")                                           \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kF32, ".f32")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kF64, ".f64")
#define TMAASYNC_REDUCE_BITS(REDUCE, OP)                                                            \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kU32, ".b32")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kS32, ".b32")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kU64, ".b64")                                                  \
    TMAASYNC_REDUCE_TYPE(REDUCE, OP, kS64, ".b64")
#define TMAASYNC_REDUCE_BY_OP(REDUCE)                                                               \
    if constexpr (kOp == ReduceOp::kAdd) { TMAASYNC_REDUCE_NUMBERS(REDUCE, ".add", ".noftz") }      \
    if constexpr (kOp == ReduceOp::kMin) { TMAASYNC_REDUCE_NUMBERS(REDUCE, ".min", "") }            \
    if constexpr (kOp == ReduceOp::kMax) { TMAASYNC_REDUCE_NUMBERS(REDUCE, ".max", "") }            \
    if constexpr (kOp == ReduceOp::kInc) { TMAASYNC_REDUCE_NUMBERS(REDUCE, ".inc", "") }            \
    if constexpr (kOp == ReduceOp::kDec) { TMAASYNC_REDUCE_NUMBERS(REDUCE, ".dec", "") }            \
    if constexpr (kOp == ReduceOp::kAnd) { TMAASYNC_REDUCE_BITS(REDUCE, ".and") }                   \
    if constexpr (kOp == ReduceOp::kOr) { TMAASYNC_REDUCE_BITS(REDUCE, ".or") }                     \
    if constexpr (kOp == ReduceOp::kXor) { TMAASYNC_REDUCE_BITS(REDUCE, ".xor") }
// clang-format on

// Shared into global by an operation, as part of this thread's current bulk group.
template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void cp_reduce_async_bulk(
    void* global, u32 shared, u32 bytes, u64 policy
) {
    static_assert(reduces_in_global(kOp, kType), "sm_90 has no such reduction into global memory");
    if (is_draining()) return;
    trace_store(shared, bytes);
    TMAASYNC_REDUCE_BY_OP(TMAASYNC_REDUCE_TO_GLOBAL)
}

// This CTA's shared memory into that of a CTA of the cluster, whose barrier is credited: two mapa
// addresses of the same CTA.
template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void cp_reduce_async_bulk_push(
    u32 remote_shared, u32 shared, u32 bytes, u32 remote_barrier
) {
    static_assert(reduces_in_shared(kOp, kType), "sm_90 has no such reduction into shared memory");
    if (is_draining()) return;
    TMAASYNC_REDUCE_BY_OP(TMAASYNC_REDUCE_TO_SHARED)
}

#undef TMAASYNC_REDUCE_BY_OP
#undef TMAASYNC_REDUCE_BITS
#undef TMAASYNC_REDUCE_NUMBERS
#undef TMAASYNC_REDUCE_TYPE
#undef TMAASYNC_REDUCE_TO_SHARED
#undef TMAASYNC_REDUCE_TO_GLOBAL

}  // namespace tmaasync::ptx
