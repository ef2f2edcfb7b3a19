#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/operands/names.cuh>

// PTX ISA: "cp.async", without bulk. Every thread copies for itself. It is a copy of the generic
// proxy: unordered with the thread's other accesses until it was waited for, and then like ordinary
// stores, so that TMA and wgmma see it only after a proxy fence.
namespace tmaasync::ptx {

// Global to shared: kBytes bytes, both addresses multiples of that. Of the source the first
// `source_bytes` are read; the rest of the target becomes zeros.
template <int kBytes, CacheLevels kLevels, L2Prefetch kPrefetch>
__device__ __forceinline__ void cp_async(u32 shared, const void* global, u32 source_bytes) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
    static_assert(kLevels == CacheLevels::kAll || kBytes == 16, "past L1 cp.async copies 16 bytes");
    asm volatile("cp.async.%4.shared::cta.global%5 [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(source_bytes), "C"(name_of(kLevels)), "C"(name_of(kPrefetch))
                 : "memory");
}

// Close the group of the copies this thread issued since the last one.
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until at most kPending of this thread's groups have not landed. Only this thread sees them.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
    static_assert(kPending >= 0, "0 or more groups");
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Wait for all of this thread's copies, committed or not.
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Raise the barrier's pending count by one, and arrive once this thread's copies have landed.
__device__ __forceinline__ void cp_async_mbarrier_arrive(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrive once this thread's copies have landed: an arrival that mbarrier.init counted.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace tmaasync::ptx
