#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "Parallel Synchronization and Communication Instructions: mbarrier".
// Every address is a shared-memory address of an 8-byte aligned 64-bit word.
namespace tmaasync::ptx {

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void mbarrier_inval(u32 barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrive; returns the state token that mbarrier.test_wait accepts.
__device__ __forceinline__ u64 mbarrier_arrive(u32 barrier) {
    u64 state;
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];"
                 : "=l"(state)
                 : "r"(barrier)
                 : "memory");
    return state;
}

__device__ __forceinline__ u64 mbarrier_arrive(u32 barrier, u32 count) {
    u64 state;
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state)
                 : "r"(barrier), "r"(count)
                 : "memory");
    return state;
}

// Arrive on a barrier that may lie in any CTA of the cluster: pass a mapa address.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 remote_barrier, u32 count) {
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(remote_barrier),
        "r"(count)
        : "memory"
    );
}

// Arrive without release: publishes nothing that the thread wrote before.
__device__ __forceinline__ void mbarrier_arrive_cluster_relaxed(u32 remote_barrier, u32 count) {
    asm volatile(
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(remote_barrier),
        "r"(count)
        : "memory"
    );
}

// Add to the bytes the phase waits for, and arrive once.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
        "r"(bytes)
        : "memory"
    );
}

__device__ __forceinline__ u64 mbarrier_arrive_expect_tx_relaxed(u32 barrier, u32 bytes) {
    u64 state;
    asm volatile("mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state)
                 : "r"(barrier), "r"(bytes)
                 : "memory");
    return state;
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx_cluster(u32 remote_barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(
                     remote_barrier
                 ),
                 "r"(bytes)
                 : "memory");
}

// Add to the bytes the phase waits for, without an arrival.
__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// Credit bytes for a transfer that never happens. The barrier may lie in any CTA of the cluster.
__device__ __forceinline__ void mbarrier_complete_tx_cluster(u32 remote_barrier, u32 bytes) {
    asm volatile(
        "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(remote_barrier),
        "r"(bytes)
        : "memory"
    );
}

// True if the phase of this parity has completed. May suspend the thread for a bounded time.
__device__ __forceinline__ bool mbarrier_try_wait_parity(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory"
    );
    return done != 0;
}

// Try with a bound on the suspension in nanoseconds: a hint.
__device__ __forceinline__ bool mbarrier_try_wait_parity_hint(
    u32 barrier, u32 parity, u32 suspend_ns
) {
    u32 done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2, %3;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity), "r"(suspend_ns)
        : "memory"
    );
    return done != 0;
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_cluster(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory"
    );
    return done != 0;
}

// Try without acquire: nothing that the arriving threads wrote is made visible.
__device__ __forceinline__ bool mbarrier_try_wait_parity_relaxed(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory"
    );
    return done != 0;
}

__device__ __forceinline__ bool mbarrier_try_wait_parity_relaxed_cluster(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory"
    );
    return done != 0;
}

// True if the phase of this parity has completed. Never suspends.
__device__ __forceinline__ bool mbarrier_test_wait_parity(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory"
    );
    return done != 0;
}

// True if the phase of a state token has completed: the current phase or the one before.
__device__ __forceinline__ bool mbarrier_test_wait(u32 barrier, u64 state) {
    u32 done;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.test_wait.acquire.cta.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t"
        "}"
        : "=r"(done)
        : "r"(barrier), "l"(state)
        : "memory"
    );
    return done != 0;
}

}  // namespace tmaasync::ptx
