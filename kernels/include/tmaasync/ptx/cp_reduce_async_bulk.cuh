#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/operands/names.cuh>

// PTX ISA: "cp.reduce.async.bulk". Addresses and sizes are multiples of 16 bytes. One thread
// issues.
namespace tmaasync::ptx {

// Shared into global by an operation, as part of this thread's current bulk group.
template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void cp_reduce_async_bulk(
    void* global, u32 shared, u32 bytes, u64 policy
) {
    static_assert(reduces_in_global(kOp, kType), "sm_90 lacks this reduction into global memory");
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.%4.%5 [%0], [%1], %2, "
        "%3;" ::"l"(global),
        "r"(shared), "r"(bytes), "l"(policy), "C"(name_of(kOp)), "C"(name_of(kType, kOp))
        : "memory"
    );
}

// This CTA's shared memory into the shared memory of a CTA of the cluster, whose barrier is
// credited: two mapa addresses of the same CTA.
template <ReduceOp kOp, ElementType kType>
__device__ __forceinline__ void cp_reduce_async_bulk_push(
    u32 remote_shared, u32 shared, u32 bytes, u32 remote_barrier
) {
    static_assert(reduces_in_shared(kOp, kType), "sm_90 lacks this reduction into shared memory");
    asm volatile(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.%4.%5 [%0], "
        "[%1], %2, [%3];" ::"r"(remote_shared),
        "r"(shared), "r"(bytes), "r"(remote_barrier), "C"(name_of(kOp)), "C"(name_of(kType, kOp))
        : "memory"
    );
}

}  // namespace tmaasync::ptx
