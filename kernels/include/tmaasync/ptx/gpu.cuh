#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "ld", "atom" and "red" of one word of global memory, with acquire or release at gpu
// scope: between threads of one GPU. __threadfence() next to an access without them is fence.sc,
// which takes longer.
namespace tmaasync::ptx {

__device__ __forceinline__ u32 ld_acquire_gpu(const u32* global) {
    u32 word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(global) : "memory");
    return word;
}

// These count, and return less than the old word: emulate.verify needs no order of calls that
// return the same. atomicInc() up to `last`: at most `limit` is returned.
__device__ __forceinline__ u32 atom_inc_up_to(u32* global, u32 last, u32 limit) {
    const u32 before = atomicInc(global, last);
    return before < limit ? before : limit;
}

template <u64 kDivisor>
__device__ __forceinline__ u64 atom_add_quotient(u64* global, u64 value) {
    return atomicAdd(global, value) / kDivisor;
}

// The word becomes `word` if it is `compare`. Returns what it was.
__device__ __forceinline__ u32 atom_acquire_gpu_cas(u32* global, u32 compare, u32 word) {
    u32 before;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(global), "r"(compare), "r"(word)
                 : "memory");
    return before;
}

__device__ __forceinline__ void red_release_gpu_add(u32* global, u32 value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

}  // namespace tmaasync::ptx
