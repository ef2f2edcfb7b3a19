#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "tcgen05.alloc, tcgen05.dealloc, tcgen05.relinquish_alloc_permit" (sm_100a, sm_103a). A
// whole warp executes each; with kCtas = 2 a warp in each CTA of the pair.
namespace tmaasync::ptx {

// Wait until `columns` of tensor memory are free, a power of two from 32 to 512, and write their
// address to the 32 bits at the shared address. The address counts lanes from bit 16 on.
template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_alloc(u32 shared, u32 columns) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    asm volatile("tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared),
                 "r"(columns), "n"(kCtas)
                 : "memory");
}

// Free the columns that an alloc returned.
template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_dealloc(u32 address, u32 columns) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns), "n"(kCtas)
                 : "memory");
}

// Give up the right to allocate, so that the next CTA can start on the SM.
template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(kCtas)
                 : "memory");
}

}  // namespace tmaasync::ptx
