#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "tcgen05.wait", "tcgen05.fence" and "tcgen05.commit" (sm_100a, sm_103a).
namespace tmaasync::ptx {

// Wait until the tcgen05.ld of the warp have read tensor memory. The whole warp executes it.
__device__ __forceinline__ void tcgen05_wait_ld() {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

// Wait until the tcgen05.st of the warp have written tensor memory. The whole warp executes it.
__device__ __forceinline__ void tcgen05_wait_st() {
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

// Order the thread's earlier operations of tcgen05 before the barrier that follows.
__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

// Order the thread's later operations of tcgen05 after the barrier before.
__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// Arrive on the mbarrier when all earlier mma, cp and shift of the thread have completed. One
// thread executes it. The address may be in another CTA of the cluster.
template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_commit(u32 barrier) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    asm volatile(
        "tcgen05.commit.cta_group::%1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            barrier
        ),
        "n"(kCtas)
        : "memory"
    );
}

// The same for the mbarrier at this offset in each CTA of the mask.
template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_commit_multicast(u32 barrier, u16 cta_mask) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    asm volatile(
        "tcgen05.commit.cta_group::%2.mbarrier::arrive::one.shared::cluster"
        ".multicast::cluster.b64 [%0], %1;" ::"r"(barrier),
        "h"(cta_mask), "n"(kCtas)
        : "memory"
    );
}

}  // namespace tmaasync::ptx
