#pragma once

#include <tmaasync/operands/integers.cuh>
#include <tmaasync/operands/names.cuh>

// PTX ISA: "cp.async.bulk". Addresses and sizes are multiples of 16 bytes. One thread issues.
namespace tmaasync::ptx {

// Global to shared; the bytes are credited to the barrier.
__device__ __forceinline__ void cp_async_bulk_load(
    u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy
) {
    asm volatile(
        "cp.async.bulk.shared::%5.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(shared),
        "l"(global), "r"(bytes), "r"(barrier), "l"(policy), "C"(name_of_destination())
        : "memory"
    );
}

// Global to the same shared offset of every CTA in the mask; each one's own barrier at the same
// offset is credited.
__device__ __forceinline__ void cp_async_bulk_load_multicast(
    u32 shared, const void* global, u32 bytes, u32 barrier, u16 cta_mask, u64 policy
) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
        "cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(shared),
        "l"(global), "r"(bytes), "r"(barrier), "h"(cta_mask), "l"(policy)
        : "memory"
    );
}

// Global to L2. Nothing waits for it.
__device__ __forceinline__ void cp_async_bulk_prefetch(const void* global, u32 bytes, u64 policy) {
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(global),
                 "r"(bytes), "l"(policy)
                 : "memory");
}

// This CTA's shared memory to the shared memory of a CTA of the cluster, whose barrier is credited:
// two mapa addresses of the same CTA.
__device__ __forceinline__ void cp_async_bulk_push(
    u32 remote_shared, u32 shared, u32 bytes, u32 remote_barrier
) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(remote_shared),
        "r"(shared), "r"(bytes), "r"(remote_barrier)
        : "memory"
    );
}

// Shared to global, as part of this thread's current bulk group.
__device__ __forceinline__ void cp_async_bulk_store(
    void* global, u32 shared, u32 bytes, u64 policy
) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
            global
        ),
        "r"(shared), "r"(bytes), "l"(policy)
        : "memory"
    );
}

// The same for byte i of every 16 whose bit i is set in the mask; of sm_100a, 103a and 120a.
__device__ __forceinline__ void cp_async_bulk_store_masked(
    void* global, u32 shared, u32 bytes, u16 byte_mask, u64 policy
) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask [%0], [%1], %2, %3, "
        "%4;" ::"l"(global),
        "r"(shared), "r"(bytes), "l"(policy), "h"(byte_mask)
        : "memory"
    );
}

// Close the bulk group of the stores this thread issued.
__device__ __forceinline__ void cp_async_bulk_commit_group() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Wait until at most kPending of this thread's groups are incomplete: the others are written, and
// visible to it.
template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
    static_assert(kPending >= 0, "0 or more groups");
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Wait until at most kPending groups still read shared memory. Guarantees nothing about global
// memory.
template <int kPending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    static_assert(kPending >= 0, "0 or more groups");
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace tmaasync::ptx
